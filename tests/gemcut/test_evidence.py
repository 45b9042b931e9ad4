"""`gemcut gate` and `gemcut evaluate`: verdicts as exit codes, and student beside twin beside teacher beside bundle."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from eval.predictions import load_predictions
from foundation.soft_labels import read_soft_labels
from foundation.training.checkpoint import list_checkpoints, read_manifest
from gemcut.cli import main
from gemcut.project import load_project
from gemcut.tracking import RESOLVED_FILE, uri_of
from transfer.distill import PREDICTIONS_FILE, train_student
from transfer.export import current_bundle

BUDGET = ["rate_per_s=200", "percentile=0.9", "min_duration_s=0.3", "max_duration_s=1.5"]
"""Enough requests to say at confidence 0.95, soon."""

MODELS = ("student", "twin", "teacher")


def gemcut(*arguments):
    """A command's exit code, in this process."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["gemcut", *map(str, arguments)])
        main()
    return ended.value.code or 0


@pytest.fixture(scope="module")
def project(tiny, tmp_path_factory):
    """A project of this module's own, with what `tiny` has."""
    return tiny.copy(tmp_path_factory.mktemp("evidence") / "tiny")


@pytest.fixture(scope="module")
def evaluated(project):
    assert gemcut("evaluate", "-p", project.path, "--all") == 0
    return {name: json.loads((project.work / "report" / f"{name}.json").read_bytes()) for name in ("report", "metrics")}


def budget_of(placement, limit_ms):
    parts = [f"placements.{placement}.budget.{part}" for part in (f"limit_ms={limit_ms}", *BUDGET)]
    return [argument for part in parts for argument in ("--set", part)]


def run_gate(project, placement, limit_ms):
    return gemcut("gate", "-p", project.path, "--placement", placement, *budget_of(placement, limit_ms), "--json")


@pytest.mark.parametrize(("limit_ms", "verdict", "exit_code"), [(1000, "PASS", 0), (0.001, "FAIL", 1)])
def test_the_verdict_is_the_exit_code(tiny, tmp_path, capsys, limit_ms, verdict, exit_code):
    project = tiny.copy(tmp_path / "tiny")
    assert run_gate(project, "related_click", limit_ms) == exit_code
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    kept = json.loads((project.work / "verdicts" / "related_click.json").read_bytes())
    assert said["related_click"]["verdict"] == kept["verdict"] == verdict
    assert kept["record"]["bundle_digest"].startswith(current_bundle(project.space().bundles("related_click")).name)
    assert kept["budget"]["limit_ms"] == limit_ms


def test_a_damaged_bundle_is_a_users_mistake_not_a_verdict(tiny, tmp_path, capsys):
    project = tiny.copy(tmp_path / "tiny")
    weights = current_bundle(project.space().bundles("related_click")) / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert gemcut("gate", "-p", project.path, "--placement", "related_click") == 3
    assert str(weights) in capsys.readouterr().err


def test_every_placement_and_objective_has_its_figures(evaluated):
    rows = {(row["placement"], row["objective"]) for row in evaluated["report"]["placements"]}
    expected = {("related_click", "click"), ("search_conversion", "click"), ("search_conversion", "conversion")}
    assert rows == expected
    for placement, objective in expected:
        for model in (*MODELS, "bundle"):
            metrics = evaluated["metrics"][placement][model][objective]
            assert {"normalized_entropy", "auc", "calibration"} <= metrics.keys()


def test_the_bundle_scores_as_its_student(evaluated):
    for placement, models in evaluated["metrics"].items():
        for objective, student in models["student"].items():
            bundle = models["bundle"][objective]
            assert bundle["num_rows"] == student["num_rows"] > 0, placement
            ours, served = (value["normalized_entropy"]["estimate"] for value in (student, bundle))
            if ours is not None:
                assert served == pytest.approx(ours, abs=1e-6)


def normalized_entropy(labels, probabilities):
    rate = labels.mean()
    cross = -np.mean(labels * np.log(probabilities) + (1 - labels) * np.log1p(-probabilities))
    return cross / -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))


@pytest.mark.parametrize("model", MODELS)
def test_the_figures_are_those_of_the_predictions(project, evaluated, model):
    space = project.space()
    arm = "student" if model == "teacher" else model
    predictions = load_predictions(space.student("related_click", 0, arm) / PREDICTIONS_FILE)
    probabilities = predictions.probabilities["click"]
    if model == "teacher":
        stamps = {
            "data_fingerprint": predictions.data_fingerprint,
            "schema_digest": space.loaded.project.schema_digest(),
        }
        frozen = read_soft_labels(space.test_labels, **stamps)
        assert (
            frozen.manifest.teacher.checkpoint
            == read_manifest(list_checkpoints(space.foundation / "checkpoints")[-1]).digest
        )
        logits = frozen.logits[np.searchsorted(frozen.row_ids, predictions.row_id), 0].astype(np.float64)
        probabilities = 1 / (1 + np.exp(-logits))
    expected = normalized_entropy(predictions.labels["click"], probabilities)
    found = evaluated["metrics"]["related_click"][model]["click"]["normalized_entropy"]["estimate"]
    assert found == pytest.approx(expected, abs=1e-9)


def test_mlflow_has_a_run_of_the_foundation_model_and_below_it_one_of_each_placement(project, evaluated, tmp_path):
    from mlflow import MlflowClient

    uri = uri_of(project.load())
    assert uri == f"sqlite:///{project.work / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    experiment = client.get_experiment_by_name("tiny")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"foundation", "related_click", "search_conversion"}
    parent = runs.pop("foundation")
    assert "mlflow.parentRunId" not in parent.data.tags
    assert parent.data.metrics["progressive/ne/click"] > 0
    assert parent.data.params["model/width"] == "8"
    resolved = Path(client.download_artifacts(parent.info.run_id, RESOLVED_FILE, str(tmp_path)))
    assert load_project(resolved).project == project.load().project
    for name, run in runs.items():
        assert RESOLVED_FILE in [file.path for file in client.list_artifacts(run.info.run_id)]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.status == "FINISHED"
        expected = evaluated["metrics"][name]["student"]["click"]["normalized_entropy"]["estimate"]
        assert run.data.metrics["ne/student/click"] == pytest.approx(expected, abs=1e-9)
        assert {f"ne/{model}/click" for model in MODELS} <= run.data.metrics.keys()


def test_the_report_is_a_page_that_opens_by_itself(project, evaluated):
    page = (project.work / "report" / "report.html").read_text()
    assert "search_conversion" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_without_a_bundle_there_is_a_report_and_it_says_what_is_missing(project, evaluated, tmp_path):
    lonely = project.copy(tmp_path / "tiny", without=["bundles", "verdicts", "mlflow.db"])
    assert gemcut("evaluate", "-p", lonely.path, "--placement", "related_click") == 0
    report = json.loads((lonely.work / "report" / "report.json").read_bytes())
    (row,) = report["placements"]
    assert any("not exported" in note for note in row["notes"])
    metrics = json.loads((lonely.work / "report" / "metrics.json").read_bytes())
    assert metrics["related_click"].keys() == set(MODELS)


def test_scores_of_another_checkpoint_of_the_same_run_are_not_evaluated(tiny, tmp_path, capsys):
    project = tiny.copy(tmp_path / "tiny")
    path = project.work / "soft_labels" / "test" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["teacher"]["checkpoint"] = 64 * "0"
    path.write_text(json.dumps(manifest))
    assert gemcut("evaluate", "-p", project.path, "--all") == 3
    said = capsys.readouterr().err
    (at_cut,) = list_checkpoints(project.space().foundation / "checkpoints")
    assert f"{path}: teacher.checkpoint" in said
    assert f"expected {read_manifest(at_cut).digest[:12]}" in said
    assert "gemcut label" in said


def report_of(project):
    return json.loads((project.work / "report" / "report.json").read_bytes())["placements"]


def test_students_of_other_settings_are_not_evaluated(project, capsys):
    narrow = ["--placement", "related_click", "--set", "placements.related_click.student.width=8"]
    assert gemcut("evaluate", "-p", project.path, *narrow) == 3
    assert "gemcut distill --placement related_click" in capsys.readouterr().err


def test_a_bundle_of_an_earlier_student_is_no_evidence_and_neither_is_its_verdict(tiny, tmp_path):
    project = tiny.copy(tmp_path / "tiny", without=["mlflow.db"])
    assert run_gate(project, "related_click", 1000) == 0
    evaluate = ["evaluate", "-p", project.path, "--placement", "related_click"]
    assert gemcut(*evaluate, *budget_of("related_click", 999)) == 0
    assert report_of(project)[0]["verdict"] is None, "it was on another budget"
    assert gemcut(*evaluate, *budget_of("related_click", 1000)) == 0
    (row,) = report_of(project)
    assert row["verdict"] == "PASS"
    assert row["parity_error"] < 1e-5
    slower = "placements.related_click.student.dense_learning_rate=0.001"
    for arm in ("student", "twin"):
        train_student(project.space(slower).student_job("related_click", 0, arm))
    assert gemcut(*evaluate, *budget_of("related_click", 1000), "--set", slower) == 0
    (row,) = report_of(project)
    assert (row["verdict"], row["parity_error"], row["latency_ms"]) == (None, None, {})
    assert any("gemcut export" in note for note in row["notes"])
    assert any("gemcut gate" in note for note in row["notes"])


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 0}', b"[1]"])
def test_a_verdict_that_can_not_be_read_is_none_and_must_be_gated_again(tiny, tmp_path, content):
    project = tiny.copy(tmp_path / "tiny", without=["mlflow.db"])
    verdict = project.space().verdict("related_click")
    verdict.parent.mkdir(parents=True, exist_ok=True)
    verdict.write_bytes(content)
    assert gemcut("evaluate", "-p", project.path, "--placement", "related_click") == 0
    (row,) = report_of(project)
    assert row["verdict"] is None
    assert any("gemcut gate" in note for note in row["notes"])


@pytest.fixture
def changed_store(tiny, tmp_path):
    """The store was made again of logs that have changed; everything else is of before."""
    import pyarrow.parquet as pq

    project = tiny.copy(tmp_path / "tiny")
    shown = project.root / "data" / "impressions.parquet"
    table = pq.read_table(shown)
    pq.write_table(table.filter(table["request_id"].to_numpy() != table["request_id"][0].as_py()), shown)
    shutil.rmtree(project.work / "store")
    assert gemcut("prepare", "-p", project.path) == 0
    return project


@pytest.mark.parametrize("command", ["train", "label"])
def test_a_changed_store_under_an_old_checkpoint_is_refused_by_name(changed_store, capsys, command):
    assert gemcut(command, "-p", changed_store.path) == 3
    said = capsys.readouterr().err
    assert "checkpoint: the log so far" in said
    assert "a store that begins at" in said, "the first request is gone"
    assert "gemcut train --fresh" in said


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_a_changed_store_under_old_students_is_refused(changed_store, capsys, command):
    assert gemcut(command, "-p", changed_store.path, "--all") == 3
    assert "problem" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "label", "distill", "export", "evaluate"])
def test_one_changed_byte_of_the_store_is_refused(tiny, tmp_path, capsys, command):
    project = tiny.copy(tmp_path / "tiny")
    part = flip_a_byte(project)
    every = [] if command in ("train", "label") else ["--all"]
    assert gemcut(command, "-p", project.path, *every) == 3
    assert str(part) in capsys.readouterr().err


def test_prepare_makes_a_changed_store_again(tiny, tmp_path):
    project = tiny.copy(tmp_path / "tiny")
    before = (project.work / "store" / "manifest.json").read_bytes()
    part = flip_a_byte(project)
    damaged = part.read_bytes()
    assert gemcut("prepare", "-p", project.path) == 0
    assert part.read_bytes() != damaged
    assert (project.work / "store" / "manifest.json").read_bytes() == before


def test_prepare_refuses_what_validate_refuses(tiny, tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    project = tiny.copy(tmp_path / "tiny")
    shutil.rmtree(project.work)
    shown = project.root / "data" / "impressions.parquet"
    table = pq.read_table(shown)
    users = table["user_id"].to_numpy().copy()
    users[table["request_id"].to_numpy() == table["request_id"][0].as_py()] = -5
    place = table.column_names.index("user_id")
    pq.write_table(table.set_column(place, "user_id", pa.array(users)), shown)
    assert gemcut("prepare", "-p", project.path) == 3
    said = capsys.readouterr().err
    assert "impressions.parquet" in said
    assert "user_id" in said
    assert "-5" in said
    assert not (project.work / "store").exists()


def flip_a_byte(project):
    (part, *_) = sorted((project.work / "store" / "requests").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    return part
