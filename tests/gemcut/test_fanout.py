"""Independent jobs in processes of their own. Their work is `eval`: every process has it, and it can do anything."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemcut.fanout import Outcome, raise_failures, run_jobs
from gemcut.project import load_project
from serving.errors import Problem, ProjectError, UserError

OWN_DEATH = "__import__('os').kill(__import__('os').getpid(), 9)"

pytestmark = pytest.mark.distributed


def outcomes(work, jobs, num_processes=1):
    return {outcome.name: outcome for outcome in run_jobs(work, jobs, num_processes=num_processes)}


def test_a_job_that_raises_and_one_whose_process_is_killed_leave_the_others_their_results():
    jobs = [("raises", "1 / 0"), ("dies", OWN_DEATH), ("leaves", "exit(7)"), ("good", "2 + 2"), ("also good", "3 * 3")]
    found = outcomes(eval, jobs)
    assert [found[name].result for name, _ in jobs] == [None, None, None, 4, 9]
    assert isinstance(found["leaves"].error, SystemExit)
    assert isinstance(found["raises"].error, ZeroDivisionError)
    assert isinstance(found["dies"].error, UserError)
    assert found["dies"].error.problems[0].where == "dies"
    assert found["good"].error is None


def test_a_death_in_one_process_does_not_reach_a_job_that_another_process_is_at(tmp_path):
    told = tmp_path / "told"
    is_told = f"__import__('os').path.exists({str(told)!r})"
    at_work = f"[__import__('time').sleep(0.01) for _ in iter(lambda: {is_told}, True)]"
    running = run_jobs(eval, [("at work", at_work), ("dies", OWN_DEATH)], num_processes=2)
    assert next(running).name == "dies"
    told.touch()
    last = next(running)
    assert (last.name, last.error) == ("at work", None)


def test_what_a_user_did_wrong_crosses_processes_with_all_its_problems(tmp_path):
    broken = tmp_path / "project.yaml"
    broken.write_text("name: x\nsurfaces: []\nobjectivs: {}\n")
    with pytest.raises(ProjectError) as here:
        load_project(broken)
    there = outcomes(load_project, [("load", broken)])["load"].error
    assert len(here.value.problems) > 2
    assert type(there) is ProjectError
    assert there.problems == here.value.problems


def test_problems_of_all_jobs_are_raised_together_each_once():
    one, two = Problem("a", "b", "c", "d"), Problem("e", "f", "g", "h")
    with pytest.raises(UserError) as caught:
        raise_failures(
            [
                Outcome("1", None, UserError(one)),
                Outcome("2", 4, None),
                Outcome("3", None, UserError([one, two])),
            ]
        )
    assert caught.value.problems == (one, two)
    raise_failures([Outcome("2", 4, None)])


def test_our_own_error_goes_first_and_notes_the_others():
    mistake = UserError(Problem("a", "b", "c", "d"))
    with pytest.raises(ZeroDivisionError) as caught:
        raise_failures([Outcome("1", None, mistake), Outcome("2", None, ZeroDivisionError("zero"))])
    assert caught.value.__notes__ == ["1 failed too: a: expected b; got c. d", "This is how 2 failed."]


def test_no_jobs_no_outcomes():
    assert outcomes(eval, []) == {}


PARENT = """
from gemcut.fanout import run_jobs
job = "[open({path!r}, 'w').write(str(__import__('os').getpid())), __import__('time').sleep(600)]"
if __name__ == "__main__":
    list(run_jobs(eval, [("long", job)], num_processes=1))
"""


def test_jobs_end_with_the_command_even_if_it_was_killed(tmp_path):
    program, told = tmp_path / "parent.py", tmp_path / "pid"
    program.write_text(PARENT.format(path=str(told)))
    parent = subprocess.Popen([sys.executable, program], stderr=subprocess.DEVNULL)
    wait_until(lambda: told.is_file() and told.read_text())
    child = int(told.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not alive(child))


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true):
    while not true():  # the test's time limit ends it
        time.sleep(0.02)
