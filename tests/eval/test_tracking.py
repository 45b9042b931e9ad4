"""Tracking against real MLflow: sqlite, and a server that dies in the middle."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.mlflow_sync import POSITION_FILE, SPOOL_FILE, escape_name, unescape_name
from eval.tracking import Tracker, sync, tracking_id, tracking_uri
from serving.errors import UserError
from tests.eval.mlflow_server import free_port, server

SELDOM_S = 1000.0
"""No sending but the last: the tests say when."""

LONG = "x" * 20_000


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests: making it takes MLflow some seconds."""
    return tmp_path_factory.mktemp("work")


def start(folder: Path, uri: str, **options: Any) -> Tracker:
    return Tracker.start(folder, uri=uri, experiment="shop", name=folder.name, interval_s=SELDOM_S, **options)


def client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def runs(uri: str, tracker_id: str) -> list[Any]:
    experiment = client(uri).get_experiment_by_name("shop")
    return client(uri).search_runs([experiment.experiment_id], f"tags.`gemcut.run` = '{tracker_id}'")


def history(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    return sorted((entry.step, entry.value) for entry in client(uri).get_metric_history(run_id, escape_name(name)))


@given(st.text(max_size=40), st.text(max_size=40))
def test_names_are_escaped_reversibly(name: str, other: str) -> None:
    escaped = escape_name(name)
    assert unescape_name(escaped) == name
    assert (escape_name(other) == escaped) == (other == name)


@settings(deadline=None)  # the first example imports MLflow
@given(
    st.text(min_size=1, max_size=20) | st.sampled_from(["a//b", "/a", "a/", "..", "a/../b", ".", "click@7d", "(x), %"])
)
def test_mlflow_accepts_every_escaped_name(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(escape_name(name))


def test_the_uri_is_the_configured_one_then_the_environments_then_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    assert tracking_uri("http://here", tmp_path) == "http://here"
    assert tracking_uri(None, tmp_path) == "http://there"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking_uri(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.slow
def test_everything_arrives_once_in_sqlite_with_artifacts_beside(
    tmp_path: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = tracking_uri(None, workdir)
    folder = tmp_path / "everything"
    with start(folder, uri, tags={"kind": "foundation"}) as tracker:
        (folder / "report.json").write_text("{}")
        tracker.log_params({"width": 32, "prose": LONG})
        for step in range(1500):
            tracker.log_metrics({"train/ne/click@7d": step / 7}, step)
        tracker.log_metrics({"grad": math.nan, "loss": 1.0}, 3)
        tracker.log_metrics({"grad": math.inf}, 4)
        tracker.log_artifact(folder / "report.json", folder="reports")
        tracker.log_artifact(folder / "gone.json")
    (run,) = runs(uri, tracker.id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "everything"
    assert run.data.params["width"] == "32"
    assert run.data.params["prose"].startswith("artifact params/prose.txt, sha256 ")
    expected = [(step, step / 7) for step in range(1500)]
    assert history(uri, run.info.run_id, "train/ne/click@7d") == expected
    assert "grad" not in run.data.metrics
    assert history(uri, run.info.run_id, "undefined/grad") == [(3, 1.0), (4, 2.0)]
    assert run.data.tags["undefined/grad"] == "inf at step 4"
    assert run.data.tags["kind"] == "foundation"
    assert run.data.tags["missing_artifact/gone.2Ejson"] == "gone before it was sent"
    place = workdir / "mlartifacts" / run.info.run_id / "artifacts"
    assert (place / "reports" / "report.json").read_text() == "{}"
    assert (place / "params" / "prose.txt").read_text() == LONG

    # Nothing is left to send; and a lost position sends everything again to no effect.
    assert sync(folder, uri) == 0
    (folder / POSITION_FILE).unlink()
    assert sync(folder, uri) > 1500
    (again,) = runs(uri, tracker.id)
    assert again.info.run_id == run.info.run_id
    assert history(uri, run.info.run_id, "train/ne/click@7d") == expected


@pytest.mark.slow
def test_a_resumed_job_goes_on_in_the_same_run_after_a_torn_line(tmp_path: Path, workdir: Path) -> None:
    uri, folder = tracking_uri(f"sqlite:///{workdir}/mlflow.db", workdir), tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt), start(folder, uri) as first:
        first.log_params({"seed": 1, "rate": 0.5})
        first.log_metrics({"loss": 2.0, "grad": math.nan}, 0)
        raise KeyboardInterrupt
    assert runs(uri, first.id)[0].info.status == "KILLED"
    with (folder / SPOOL_FILE).open("ab") as spool:
        spool.write(b'{"kind":"metr')
    with start(folder, uri) as second:
        second.log_params({"seed": 1, "rate": 0.25})
        second.log_metrics({"loss": 1.0, "grad": math.nan}, 1)
    assert second.id == first.id == tracking_id(folder)
    (run,) = runs(uri, first.id)
    assert run.info.status == "FINISHED"
    assert history(uri, run.info.run_id, "loss") == [(0, 2.0), (1, 1.0)]
    assert run.data.metrics["undefined/grad"] == 2
    assert run.data.params == {"seed": "1", "rate": "0.5"}
    assert run.data.tags["changed/rate"] == "0.25"


@pytest.mark.slow
def test_children_find_their_parent_whichever_is_sent_first(tmp_path: Path, workdir: Path) -> None:
    uri, nowhere = f"sqlite:///{workdir}/mlflow.db", f"http://127.0.0.1:{free_port()}"
    with start(tmp_path / "parent", nowhere) as parent:
        pass
    with start(tmp_path / "early", uri, parent=parent.id) as early:
        pass
    assert "mlflow.parentRunId" not in runs(uri, early.id)[0].data.tags
    assert sync(tmp_path / "parent", uri) == 2
    with start(tmp_path / "late", uri, parent=tracking_id(tmp_path / "parent")) as late:
        pass
    (parent_run,) = runs(uri, parent.id)
    for child in (early, late):
        assert runs(uri, child.id)[0].data.tags["mlflow.parentRunId"] == parent_run.info.run_id


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_stops_nothing_and_gets_everything_once(
    tmp_path: Path, workdir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a busy machine is no outage
    port, folder = free_port(), tmp_path / "outage"
    uri = f"http://127.0.0.1:{port}"
    tracker = start(folder, uri)
    tracker.log_metrics({"loss": 0.0}, 0)
    with server(workdir, port):
        tracker._send()
        assert (folder / POSITION_FILE).exists()
    for step in range(1, 50):
        tracker.log_metrics({"loss": float(step)}, step)
        if step % 20 == 0:
            tracker._send()
    tracker.finish()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "does not take tracking data; it is kept in" in warnings[0]
    with server(workdir, port):
        assert sync(folder, uri) == 50
        assert sync(folder, uri) == 0
        (run,) = runs(uri, tracker.id)
        assert run.info.status == "FINISHED"
        assert history(uri, run.info.run_id, "loss") == [(step, float(step)) for step in range(50)]


def test_a_full_disk_costs_tracking_not_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / SPOOL_FILE).symlink_to("/dev/full")
    tracker = Tracker(tmp_path, "http://127.0.0.1:1", "id")
    for step in range(3):
        tracker.log_metrics({"loss": 1.0}, step)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["tracking is lost"]


def test_logging_opens_no_connection_and_imports_no_mlflow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from eval.tracking import Tracker\n"
        "tracker = Tracker(Path(sys.argv[1]), 'http://127.0.0.1:1', 'id')\n"
        "tracker.log_params({'a': 1}); tracker.log_metrics({'b': 2.0}, 1); tracker.log_artifact(Path('c'))\n"
        "assert 'mlflow' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert len((tmp_path / SPOOL_FILE).read_text().splitlines()) == 3


@pytest.mark.parametrize("name", ["", "x" * 231, "@" * 100])
def test_names_that_mlflow_can_not_hold_are_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="expected a name of 1 to 230 characters"):
        Tracker(tmp_path, "http://127.0.0.1:1", "id").log_metrics({name: 1.0}, 0)


def test_a_folder_without_a_spool_is_refused(tmp_path: Path) -> None:
    assert tracking_id(tmp_path) is None
    with pytest.raises(UserError, match="expected the spool of a tracked run; got no such file"):
        sync(tmp_path, "http://127.0.0.1:1")
