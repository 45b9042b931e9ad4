"""The CSV example: its logs are what its script makes, its conversion gives what its project file asks for."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from foundation.data.validate import validate_data
from gemcut.project import load_project

EXAMPLE = Path(__file__).parents[2] / "examples" / "csv"
LOGS = ("pageviews", "actions", "catalogue")


def run(script: str, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [script, str(target)])
    runpy.run_path(str(EXAMPLE / script), run_name="__main__")


def test_the_logs_are_what_the_script_makes(tmp_path, monkeypatch):
    run("make_logs.py", tmp_path, monkeypatch)
    for name in LOGS:
        assert (tmp_path / f"{name}.csv").read_text() == (EXAMPLE / "logs" / f"{name}.csv").read_text()


def test_the_converted_logs_pass_validation(tmp_path, monkeypatch):
    run("convert.py", tmp_path / "data", monkeypatch)
    project = load_project(EXAMPLE / "project.yaml").project
    assert validate_data(project, tmp_path, project.split).problems == ()


def test_yes_no_and_empty_become_1_0_and_null(tmp_path, monkeypatch):
    run("convert.py", tmp_path, monkeypatch)
    lines = (EXAMPLE / "logs" / "pageviews.csv").read_text().splitlines()[1:]
    expected = sorted((line.split(",")[0], line.split(",")[4], line.split(",")[7]) for line in lines)
    rows = pq.read_table(tmp_path / "impressions.parquet").to_pylist()
    names = {1: "yes", 0: "no", None: ""}
    assert "" in {saved for _, _, saved in expected}
    assert sorted((row["request_id"], row["item_id"], names[row["saved"]]) for row in rows) == expected


def test_an_unknown_price_is_null(tmp_path, monkeypatch):
    run("convert.py", tmp_path, monkeypatch)
    unknown = (EXAMPLE / "logs" / "catalogue.csv").read_text().count("n/a")
    assert unknown > 0
    assert pq.read_table(tmp_path / "items.parquet")["price"].null_count == unknown
