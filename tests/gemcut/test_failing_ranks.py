"""Two real ranks of which one hangs, dies or fails: which one, why and where is told, once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.killing import processes_of
from foundation.goodput.journal import Began, read_journal

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

BREAK_RANK = Path(__file__).with_name("break_rank.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")
DEADLINE_S = 120


@pytest.fixture
def project(tiny_teacher, tmp_path):
    """The tiny project with its store; nothing is trained."""
    return tiny_teacher.copy(tmp_path / "tiny", without=["foundation", "soft_labels", "mlflow.db", "mlartifacts"])


def by_torchrun(project, how, *, rank=1, options=(), settings=()):
    """`gemcut train` on two ranks, of which one breaks after its fifth step."""
    command = [TORCHRUN, "--standalone", "--nproc-per-node", "2", *options, BREAK_RANK, how, str(rank), "5"]
    command += ["train", "-p", project.path, *(part for setting in settings for part in ("--set", setting))]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def by_hand(project, how, *, timeout_s, ends):
    """The same without torchrun → of each rank the exit code, None where it had to be killed, and what it said.

    `ends` are the ranks that end by themselves.
    """
    meeting = {"WORLD_SIZE": "2", "GEMCUT_MEETING_FILE": str(project.root / "meeting")}
    command = [sys.executable, BREAK_RANK, how, "1", "5", "train", "-p", project.path]
    command += ["--set", f"foundation.training.timeout={timeout_s}s"]
    ranks = [
        subprocess.Popen(command, env=os.environ | meeting | {"RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    try:
        said = {rank: ranks[rank].communicate(timeout=DEADLINE_S)[1] for rank in ends}
        codes = [process.poll() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            process.stderr.close()
    return [SimpleNamespace(returncode=code, said=said.get(rank, "")) for rank, code in enumerate(codes)]


def test_a_stopped_rank_is_named_by_the_one_that_waits_for_it(project):
    waiting, stopped = by_hand(project, "stop", timeout_s=10, ends=[0])
    assert (waiting.returncode, stopped.returncode) == (1, None)
    assert "Traceback" not in waiting.said
    assert waiting.said.count("rank 1 (process") == 1
    assert "gives no sign of life" in waiting.said
    assert "rank 0, after step 5, at foundation/parallel/reduce.py:" in waiting.said
    assert "expected rank 1 to take part" in waiting.said
    assert "Timed out waiting 10000ms" in waiting.said


def test_a_rank_that_hangs_is_named_with_the_line_where_it_does_and_ends_too(project):
    waiting, hung = by_hand(project, "hang", timeout_s=10, ends=[0, 1])
    assert (waiting.returncode, hung.returncode) == (1, 1)
    assert "Traceback" not in waiting.said + hung.said
    assert "is alive after step 5, at foundation/training/stream.py:" in waiting.said
    (line,) = hung.said.strip().splitlines()
    assert line.startswith("rank 1 ends, since rank 0 failed first: Timed out waiting 10000ms")


def test_a_user_s_mistake_on_one_rank_is_told_by_it_and_is_the_exit_code_of_both(project):
    other, mistaken = by_hand(project, "mistake", timeout_s=60, ends=[0, 1])
    assert (other.returncode, mistaken.returncode) == (3, 3)
    assert "Traceback" not in other.said + mistaken.said
    assert mistaken.said.count("Mend it.") == 1
    assert "rank 1 of 2 failed first" in mistaken.said
    assert (
        other.said.strip().splitlines()[-1].startswith("rank 0 ends, since rank 1 failed first: there: expected this")
    )


def test_a_mistake_that_all_ranks_find_is_told_once(project):
    run = by_torchrun(project, "kill", settings=["foundation.training.seedd=1"])
    assert run.returncode != 0
    told, _, summary = run.stderr.partition("ChildFailedError")
    assert told.count("1 problem\n") == told.count("Did you mean `seed`?\n") == 1
    assert "Did you mean `seed`?" in summary.partition("Root Cause")[2]


def test_a_bug_on_one_rank_is_shown_once_and_is_torchrun_s_root_cause(project):
    run = by_torchrun(project, "bug")
    assert run.returncode == 1
    assert run.stderr.count("Traceback (most recent call last)") == 2, "the rank's, and torchrun's of itself"
    assert run.stderr.count('raise ValueError("a bug in rank 1")') == 1
    assert "rank 1 of 2 failed first" in run.stderr
    cause = run.stderr.partition("Root Cause")[2]
    assert "rank      : 1 " in cause
    assert "ValueError: a bug in rank 1, at foundation/training/stream.py:" in cause


def test_a_killed_rank_is_restarted_by_torchrun_and_goes_on_from_its_checkpoint(project):
    options, settings = (
        ["--max-restarts", "1"],
        [f"foundation.training.{name}" for name in ("checkpoint_every=3", "checkpoint_async=false")],
    )
    run = by_torchrun(project, "kill", rank=0, options=options, settings=settings)
    assert run.returncode == 0, run.stderr
    events = read_journal(project.work / "foundation" / "journal.jsonl")
    assert [event.step for event in events if isinstance(event, Began)] == [0, 3]
    assert json.loads((project.work / "foundation" / "report.json").read_bytes())["stream"]["resumed_at_step"] == 3


def test_ranks_whose_launcher_was_killed_end_by_themselves(project):
    command = [TORCHRUN, "--standalone", "--nproc-per-node", "2", BREAK_RANK, "hang", "1", "5", "train"]
    output = project.root / "output.txt"
    with output.open("wb") as file:
        launcher = subprocess.Popen([*command, "-p", project.path], stdout=file, stderr=file)
    journal = project.work / "foundation" / "journal.jsonl"
    wait_until(journal.is_file)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    wait_until(lambda: not processes_of(project.path))
    assert "expected the launcher that started it" in output.read_text()


def wait_until(happened):
    ticks, deadline = threading.Event(), time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < deadline, happened
        ticks.wait(0.1)
