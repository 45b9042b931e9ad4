"""The final table: what each placement's student is worth, and whether it keeps its budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from eval.compare import Estimate, SeedComparison
from eval.metrics.calibration import CalibrationBin
from serving.gate.policy import Budget

if TYPE_CHECKING:
    from rich.console import Console, Group

MISSING = "-"
COLUMNS = ("Placement", "Model", "NE", "AUC", "Transfer", "Parity", "Latency", "Verdict")
MODELS = ("teacher", "twin", "student")
MEASURED = ("p50", "p90", "p95", "p99")
HELP = (
    "NE: normalised entropy; lower is better, 1 is the mean label. ±: standard error over seeds. "
    "Twin: the student without transfer. Transfer: share of the twin's gap to the teacher that the student closes. "
    "Δ: NE of the student less the twin's, of a single seed its interval over users; where that interval, or two "
    "standard errors, keep Δ from 0, the student's NE is coloured. "
    "Parity: largest difference between trained and served probabilities."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementResult:
    """One placement and objective: everything the report says of it; None or empty where it was not measured.

    Attributes:
        placement: name of the placement.
        surface: its surface.
        objective: one of its objectives.
        budget: its latency limit.
        comparison: student, twin and teacher on the same rows.
        parity_error: largest difference between trained and served probabilities.
        parity_tolerance: largest difference allowed.
        latency_ms: by "p50", "p90", "p95", "p99", "max": open-loop latency in milliseconds.
        verdict: of the latency gate.
        verdict_reasons: why the gate said so.
        calibration: by "student", "twin", "teacher": predicted and actual rates.
        reasons: by "comparison", "teacher", "parity", "latency", "verdict": why it was not measured.
    """

    placement: str
    surface: str
    objective: str
    budget: Budget
    comparison: SeedComparison | None = None
    parity_error: float | None = None
    parity_tolerance: float | None = None
    latency_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    verdict: Literal["PASS", "FAIL", "INVALID"] | None = None
    verdict_reasons: tuple[str, ...] = ()
    calibration: Mapping[str, tuple[CalibrationBin, ...]] = field(default_factory=dict[str, tuple[CalibrationBin, ...]])
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def title(self) -> str:
        """Placement and objective."""
        return f"{self.placement} · {self.objective}"

    def estimate(self, metric: Literal["ne", "auc"], model: str) -> Estimate | None:
        """A metric of "teacher", "twin" or "student"; None if it was not measured."""
        return None if self.comparison is None else getattr(self.comparison, f"{metric}_{model}")


def table_lines(result: PlacementResult) -> tuple[tuple[str, ...], ...]:
    """The table's text for one placement: three lines (teacher, twin, student), a cell for each of `COLUMNS`."""
    percentile = f"p{100 * result.budget.percentile:g}"
    budget = f"{percentile} ≤ {result.budget.limit_ms:g} ms"
    beside = percentile if percentile in MEASURED else MEASURED[-1]
    tolerance = "" if result.parity_tolerance is None else f"≤ {result.parity_tolerance:.0e}"
    columns = (
        (result.placement, result.objective, f"{result.comparison.num_rows:,} rows" if result.comparison else "- rows"),
        MODELS,
        tuple(_estimate(result.estimate("ne", model)) for model in MODELS),
        tuple(_estimate(result.estimate("auc", model)) for model in MODELS),
        (*_ratio(result.comparison), _difference(result.comparison)),
        (MISSING if result.parity_error is None else f"{result.parity_error:.1e}", tolerance, ""),
        (*(f"{name} {_milliseconds(result.latency_ms.get(name))}" for name in ("p50", beside)), budget),
        (result.verdict or MISSING, "", ""),
    )
    return tuple(zip(*columns, strict=True))


def notes(result: PlacementResult) -> tuple[str, ...]:
    """Why values are missing, and why a verdict is not PASS: sentences for below the table.

    What holds for every objective of a placement names only the placement.
    """
    return tuple(
        f"{name}: {what}: {reason}"
        for name, found in (
            (result.title, _notes_of_objective(result)),
            (result.placement, _notes_of_placement(result)),
        )
        for what, reason in found
    )


def distinct_notes(results: Sequence[PlacementResult]) -> tuple[str, ...]:
    """The notes of all, each once: objectives of one placement share some."""
    return tuple(dict.fromkeys(note for result in results for note in notes(result)))


def _notes_of_objective(result: PlacementResult) -> list[tuple[str, str]]:
    why = result.reasons
    found: list[tuple[str, str]] = []
    if result.comparison is None:
        found.append(("NE, AUC and transfer", why.get("comparison", "not evaluated")))
    else:
        if result.comparison.ne_teacher is None:
            found.append(("teacher", why.get("teacher", "no teacher predictions")))
        if result.comparison.transfer_ratio.reason is not None:
            found.append(("transfer", result.comparison.transfer_ratio.reason))
        found += [
            (f"{metric.upper()} of the {model}", "undefined: only one class among the labels")
            for metric in ("ne", "auc")
            for model in MODELS
            if (value := result.estimate(metric, model)) is not None and not math.isfinite(value.mean)
        ]
    return found


def _notes_of_placement(result: PlacementResult) -> list[tuple[str, str]]:
    why = result.reasons
    found: list[tuple[str, str]] = []
    if result.parity_error is None:
        found.append(("parity", why.get("parity", "not exported")))
    if not result.latency_ms:
        found.append(("latency", why.get("latency", "not measured")))
    if result.verdict is None:
        found.append(("verdict", why.get("verdict", "not gated")))
    elif result.verdict != "PASS":
        found += [(result.verdict, reason) for reason in result.verdict_reasons]
    return found


def render(results: Sequence[PlacementResult], *, title: str = "Placements") -> Group:
    """The table and its notes, for a rich console."""
    from rich.box import HORIZONTALS
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_style="bold", header_style="bold", border_style="dim", box=HORIZONTALS, padding=(0, 1, 0, 0)
    )
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for result in results:
        for model, cells in zip(MODELS, table_lines(result), strict=True):
            styles = [_style(result, column, model) for column in COLUMNS]
            table.add_row(*map(Text, cells, styles), end_section=model == "student")
    below = [Text(f"- {note}", "yellow") for note in distinct_notes(results)]
    return Group(table, *below, Text(HELP, "dim"))


def print_report(results: Sequence[PlacementResult], console: Console | None = None) -> None:
    """Print the table; where there is no terminal, 120 columns wide."""
    from rich.console import Console

    if console is None:
        console = Console()
        console = console if console.is_terminal else Console(width=120)
    console.print(render(results))


def as_json(result: PlacementResult) -> dict[str, Any]:
    """Everything the report knows of a placement, with the notes, as plain values."""
    content = {item.name: getattr(result, item.name) for item in dataclasses.fields(result)}
    return content | {"budget": result.budget.model_dump(mode="json"), "notes": notes(result)}


def _style(result: PlacementResult, column: str, model: str) -> str:
    if column == "Verdict":
        return {"PASS": "bold green", "FAIL": "bold red", "INVALID": "bold yellow"}.get(result.verdict or "", "")
    if column == "NE" and model == "student" and result.comparison is not None:
        gain = result.comparison.student_minus_twin
        return "bold" if not gain.is_clear else "bold green" if gain.mean < 0 else "bold red"
    if column in {"Model", "NE", "AUC"}:
        return "bold" if model == "student" else "dim"
    return "bold" if column == "Placement" and model == "teacher" else ""


def _estimate(value: Estimate | None) -> str:
    if value is None or not math.isfinite(value.mean):
        return MISSING
    known = math.isfinite(value.standard_error) and value.standard_error != 0
    return f"{value.mean:.4f} ±{value.standard_error:.4f}" if known else f"{value.mean:.4f}"


def _difference(comparison: SeedComparison | None) -> str:
    if comparison is None or not math.isfinite(comparison.student_minus_twin.mean):
        return ""
    value = comparison.student_minus_twin
    if value.num_seeds == 1 and math.isfinite(value.low):
        return f"Δ {value.low:.4f} to {value.high:.4f}"
    return f"Δ {_estimate(value)}"


def _ratio(comparison: SeedComparison | None) -> tuple[str, str]:
    ratio = comparison.transfer_ratio if comparison else None
    if ratio is None or ratio.value is None:
        return MISSING, ""
    known = ratio.low is not None and ratio.high is not None and math.isfinite(ratio.low) and math.isfinite(ratio.high)
    return f"{ratio.value:.0%}", f"{ratio.low:.0%} to {ratio.high:.0%}" if known else ""


def _milliseconds(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:.2f} ms"
