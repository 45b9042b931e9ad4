"""A lock is one process's, until that process ends, however it ends."""

import signal
import subprocess
import sys
import time

import pytest

from eval.locks import lock_held, only_one
from serving.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from eval.locks import lock_held
with lock_held(Path(sys.argv[1])) as held:
    print(held, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def holder(tmp_path):
    """seconds → another process that holds the lock for so long."""
    started = []

    def start(seconds):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, tmp_path / "a" / "lock", str(seconds)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "True\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_lock_is_refused_while_another_process_has_it_and_free_once_that_is_killed(tmp_path, holder):
    def enter():
        with only_one(tmp_path / "a" / "lock", what="the folder"):
            return True

    other = holder(60)
    with pytest.raises(UserError, match="the folder: expected one run at a time; got another one at work"):
        enter()
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert enter()


def test_a_lock_that_can_not_be_made_is_a_users_problem(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match=r"a/lock: expected to write; got"), lock_held(tmp_path / "a" / "lock"):
        raise AssertionError("there is no lock to hold")


def test_who_is_patient_gets_it_when_the_other_has_ended(tmp_path, holder):
    holder(0.5)
    with lock_held(tmp_path / "a" / "lock") as held:
        assert not held
    with lock_held(tmp_path / "a" / "lock", patience_s=30) as held:
        assert held


def test_patience_ends(tmp_path, holder):
    holder(60)
    asked = time.monotonic()
    with lock_held(tmp_path / "a" / "lock", patience_s=0.5) as held:
        assert not held
    assert time.monotonic() - asked >= 0.5
