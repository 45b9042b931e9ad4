"""The report says what was measured, and why the rest was not, in three forms."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.compare import Difference, Estimate, SeedComparison, TransferRatio
from eval.metrics.calibration import CalibrationBin
from eval.report import COLUMNS, PlacementResult, notes, print_report, render, table_lines
from eval.report_page import page, write_report
from serving.gate.policy import Budget

BUDGET = Budget(limit_ms=5, rate_per_s=50)


def seeds(mean: float) -> Estimate:
    return Estimate(mean, 0.0012, 3)


COMPARISON = SeedComparison(
    num_rows=84_213,
    ne_student=seeds(0.8290),
    ne_twin=seeds(0.8345),
    ne_teacher=seeds(0.8123),
    auc_student=seeds(0.7370),
    auc_twin=seeds(0.7311),
    auc_teacher=Estimate(0.7512, math.nan, 1),
    student_minus_twin=Difference(-0.0055, 0.0012, 3, -0.0079, -0.0031),
    transfer_ratio=TransferRatio(0.2477, 0.19, 0.31, None),
)
FULL = PlacementResult(
    placement="front",
    surface="front_page",
    objective="purchase",
    budget=BUDGET,
    comparison=COMPARISON,
    parity_error=3.14e-7,
    parity_tolerance=1e-5,
    latency_ms={"p50": 0.8, "p90": 1.5, "p95": 1.8, "p99": 2.125, "max": 9.0},
    verdict="PASS",
    calibration={"student": (CalibrationBin(10, 0.01, 0.012), CalibrationBin(10, 0.2, 0.19))},
)
EMPTY = PlacementResult(
    placement="<b>[red]mail", surface="mailer", objective="purchase", budget=BUDGET, reasons={"latency": "no requests"}
)


def printed(*results: PlacementResult, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(results, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_full_entry_says_everything() -> None:
    assert list(zip(COLUMNS, *table_lines(FULL), strict=True)) == [
        ("Placement", "front", "purchase", "84,213 rows"),
        ("Model", "teacher", "twin", "student"),
        ("NE", "0.8123 ±0.0012", "0.8345 ±0.0012", "0.8290 ±0.0012"),
        ("AUC", "0.7512", "0.7311 ±0.0012", "0.7370 ±0.0012"),
        ("Transfer", "25%", "19% to 31%", "Δ -0.0055 ±0.0012"),
        ("Parity", "3.1e-07", "≤ 1e-05", ""),
        ("Latency", "p50 0.80 ms", "p99 2.12 ms", "p99 ≤ 5 ms"),
        ("Verdict", "PASS", "", ""),
    ]
    assert notes(FULL) == ()


def test_what_is_missing_is_a_dash_with_a_reason() -> None:
    assert list(zip(*table_lines(EMPTY), strict=True))[2:] == [
        ("-", "-", "-"),
        ("-", "-", "-"),
        ("-", "", ""),
        ("-", "", ""),
        ("p50 -", "p99 -", "p99 ≤ 5 ms"),
        ("-", "", ""),
    ]
    assert [note.split(": ", 1)[1] for note in notes(EMPTY)] == [
        "NE, AUC and transfer: not evaluated",
        "parity: not exported",
        "latency: no requests",
        "verdict: not gated",
    ]


def test_a_ratio_that_is_noise_and_a_metric_without_value_have_their_reasons() -> None:
    noise = TransferRatio(None, None, None, "the lead is noise")
    comparison = replace(
        COMPARISON, transfer_ratio=noise, ne_teacher=None, auc_teacher=None, auc_student=seeds(math.nan)
    )
    result = replace(FULL, comparison=comparison, verdict="FAIL", verdict_reasons=("12 of 900 were late",))
    assert [note.removeprefix("front · purchase: ") for note in notes(result)] == [
        "teacher: no teacher predictions",
        "transfer: the lead is noise",
        "AUC of the student: undefined: only one class among the labels",
        "front: FAIL: 12 of 900 were late",
    ]
    assert table_lines(result)[0][2:5] == ("-", "-", "-")


def test_one_teacher_for_all_seeds_has_no_error_over_seeds() -> None:
    comparison = replace(COMPARISON, ne_teacher=Estimate(0.8123, 0.0, 3))
    assert table_lines(replace(FULL, comparison=comparison))[0][2] == "0.8123"


@pytest.mark.parametrize(
    ("difference", "cell", "style"),
    [
        (Difference(-0.0055, 0.0012, 3, -0.0079, -0.0031), "Δ -0.0055 ±0.0012", "bold green"),
        (Difference(-0.0055, 0.0030, 3, -0.0115, 0.0005), "Δ -0.0055 ±0.0030", "bold"),
        (Difference(0.0055, 0.0012, 3, 0.0031, 0.0079), "Δ 0.0055 ±0.0012", "bold red"),
        (Difference(-0.0055, math.nan, 1, -0.0070, -0.0040), "Δ -0.0070 to -0.0040", "bold green"),
        (Difference(-0.0055, math.nan, 1, -0.0120, 0.0010), "Δ -0.0120 to 0.0010", "bold"),
        (Difference(-0.0055, math.nan, 1, math.nan, math.nan), "Δ -0.0055", "bold"),
    ],
)
def test_a_gain_over_the_twin_is_coloured_only_where_it_is_no_noise(
    difference: Difference, cell: str, style: str
) -> None:
    result = replace(FULL, comparison=replace(COMPARISON, student_minus_twin=difference))
    assert table_lines(result)[2][COLUMNS.index("Transfer")] == cell
    table = render([result]).renderables[0]
    assert isinstance(table, Table)
    assert [text.style for text in table.columns[COLUMNS.index("NE")].cells if isinstance(text, Text)][2] == style


@pytest.mark.parametrize(
    ("percentile", "shown"), [(0.95, "p95 1.80 ms"), (0.99, "p99 2.12 ms"), (0.999, "p99 2.12 ms")]
)
def test_latency_is_shown_at_the_percentile_of_the_budget(percentile: float, shown: str) -> None:
    result = replace(FULL, budget=Budget(limit_ms=5, rate_per_s=50, percentile=percentile))
    assert [line[COLUMNS.index("Latency")] for line in table_lines(result)][:2] == ["p50 0.80 ms", shown]


def test_what_two_objectives_share_is_noted_once() -> None:
    second = replace(EMPTY, objective="click")
    assert printed(EMPTY, second).count("latency: no requests") == 1
    assert printed(EMPTY, second).count("NE, AUC and transfer: not evaluated") == 2
    assert page([EMPTY, second], title="t").count("latency: no requests") == 1


def test_the_terminal_shows_names_as_they_are() -> None:
    text = printed(FULL, EMPTY)
    assert "<b>[red]mail · purchase" in text
    assert "- <b>[red]mail: latency: no requests" in text
    assert all(word in text for word in ("0.8290 ±0.0012", "19% to 31%", "p99 ≤ 5 ms", "PASS"))


def test_a_narrow_terminal_folds_numbers_and_loses_none() -> None:
    text = printed(FULL, width=80)
    assert max(map(len, text.splitlines())) <= 80
    for number in ("0.8290", "0.7370", "±0.0012", "25%", "3.1e-07", "2.12", "PASS"):
        assert number in text


def test_no_placements_is_an_empty_table() -> None:
    assert "Placement" in printed()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    assert write_report([FULL, EMPTY], path, title="a <shop> & co") == path / "report.html"
    return path


def test_the_page_is_whole_escaped_and_needs_no_network(folder: Path) -> None:
    html = (folder / "report.html").read_text()
    assert (folder / "plotly.min.js").stat().st_size > 1_000_000
    assert "<title>a &lt;shop&gt; &amp; co</title>" in html
    assert "<b>[red]mail" not in html.partition("<script type")[0]
    assert "&lt;b&gt;[red]mail" in html
    assert "http://" not in html
    assert "https://" not in html.replace("https://plot.ly", "")

    found: list[str | None] = []

    class Sources(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for name, value in attrs if name in {"src", "href"})

    Sources().feed(html)
    assert found == ["plotly.min.js"]
    assert html.count('class="plotly-graph-div"') == 3


def test_a_page_without_measurements_says_so(tmp_path: Path) -> None:
    html = write_report([EMPTY], tmp_path, title="t").read_text()
    assert html.count("Nothing measured.") == 3


def test_the_json_holds_the_numbers_unrounded(folder: Path) -> None:
    report = orjson.loads((folder / "report.json").read_bytes())
    full, empty = report["placements"]
    assert (report["format"], report["title"]) == (1, "a <shop> & co")
    assert full["comparison"]["transfer_ratio"]["value"] == 0.2477
    assert full["comparison"]["auc_teacher"] == {"mean": 0.7512, "standard_error": None, "num_seeds": 1}
    assert full["budget"]["limit_ms"] == 5
    assert full["calibration"]["student"][1] == {"num_rows": 10, "predicted": 0.2, "actual": 0.19}
    assert empty["comparison"] is None
    assert len(empty["notes"]) == 4
