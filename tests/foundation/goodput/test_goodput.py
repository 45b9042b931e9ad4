"""Where a job's time went: accounts of journals that were worked out by hand, and of real runs that died."""

import pytest

from foundation.goodput.journal import Journal, process_started_s, read_journal
from foundation.goodput.report import goodput_of


class Clock:
    """A clock that a test turns."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def attempt(path, *, started, first_step_at, step, signs):
    """A process that began and gave signs of life: (time, name of the event, step, seconds of it)."""
    clock = Clock(started)
    journal = Journal(path, clock, started)
    clock.now = first_step_at - 1
    journal.phase("imports")
    clock.now = first_step_at
    journal.arrived(step, 1.0, world_size=1)
    for when, event, at, seconds in signs:
        clock.now = when
        if event == "alive":
            journal.arrived(at, seconds, world_size=1)
            journal.alive(at)
        elif event == "saved":
            journal.saved(at, stall_s=seconds)
        else:
            journal.ended(at, how=event)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "job" / "journal.jsonl"


def test_the_account_of_a_job_that_died_once(path):
    first = [(120, "alive", 10, 2.0), (141, "saved", 20, 1.0), (160, "alive", 28, 3.0)]
    attempt(path, started=100, first_step_at=110, step=0, signs=first)
    second = [(220, "alive", 25, 4.0), (231, "saved", 30, 1.0), (232, "finished", 30, 0)]
    attempt(path, started=180, first_step_at=195, step=20, signs=second)

    account = goodput_of(read_journal(path))

    assert account.num_attempts == 2
    assert account.wall_s == 232 - 100
    assert account.startup_s == 10 + 15
    assert account.startup_phases_s == {"imports": 14, "first batch": 1}
    assert account.data_wait_s == 2 + 4, "three more seconds were waited for steps that were done again"
    assert account.checkpoint_stall_s == 1 + 1
    assert (account.redone_s, account.steps_redone) == (160 - 141, 8)
    assert account.down_s == 180 - 160
    assert account.productive_s == 132 - 25 - 6 - 2 - 19 - 20
    assert account.goodput == pytest.approx(60 / 132)
    assert account.ettr == pytest.approx(66 / 132)


def test_an_undisturbed_job_does_nothing_twice(path):
    attempt(path, started=0, first_step_at=5, step=0, signs=[(50, "alive", 9, 0.0), (55, "finished", 10, 0)])
    account = goodput_of(read_journal(path))
    assert (account.redone_s, account.down_s, account.steps_redone) == (0, 0, 0)
    assert account.productive_s == 50


def test_the_time_from_an_end_to_the_next_days_start_is_nobodys(path):
    attempt(path, started=0, first_step_at=5, step=0, signs=[(15, "finished", 4, 0)])
    attempt(path, started=1000, first_step_at=1002, step=4, signs=[(1012, "finished", 8, 0)])
    account = goodput_of(read_journal(path))
    assert (account.wall_s, account.down_s, account.productive_s) == (15 + 12, 0, 10 + 10)


def test_what_died_before_its_first_sign_of_life_has_only_begun(path):
    attempt(path, started=0, first_step_at=5, step=0, signs=[])
    attempt(path, started=8, first_step_at=12, step=0, signs=[(22, "finished", 4, 0)])
    account = goodput_of(read_journal(path))
    assert (account.wall_s, account.startup_s, account.down_s, account.productive_s) == (22, 9, 3, 10)


def test_a_line_that_a_death_tore_is_left_out(path):
    attempt(path, started=0, first_step_at=5, step=0, signs=[(15, "finished", 4, 0)])
    whole = read_journal(path)
    path.write_bytes(path.read_bytes() + b'{"kind":"alive","st')
    assert read_journal(path) == whole


def test_without_a_first_step_there_is_no_account(path):
    journal = Journal(path, Clock(3.0), 0.0)
    journal.phase("imports")
    journal.ended(0, how="finished")
    assert not path.exists()
    assert goodput_of(read_journal(path)) is None


def test_signs_of_life_are_some_seconds_apart(path):
    attempt(path, started=0, first_step_at=1, step=0, signs=[(2 + k, "alive", k, 0.0) for k in range(11)])
    assert [event.time_s for event in read_journal(path)] == [1, 6, 11]


def test_this_process_was_made_before_now_and_after_the_machine():
    import time

    assert time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) < process_started_s() < time.time()
