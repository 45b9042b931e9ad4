"""What a save costs, on times that were made up so that the answer is known; and the whole of it on a tiny log."""

import math

import numpy as np
import pytest

from benchmarks.checkpoint_stall import (
    ASYNC,
    NONE,
    SYNC,
    Cost,
    Pass,
    compare,
    cost_of,
    median_interval,
    opened_job,
    pair_differences,
)
from foundation.efficiency.timing import Measured
from gemcut.console import Screen
from serving.errors import UserError

BLOCK = 3


def made_pass(step_s, *, stall_s=0.0, slower_s=0.0):
    """A pass whose steps take `step_s`; a save every 2 * BLOCK steps stops it, and slows the next two steps down."""
    seconds = np.array(step_s, dtype=float)
    saves = range(2 * BLOCK, len(seconds), 2 * BLOCK)
    for save in saves:
        seconds[save - 1] += stall_s
        seconds[save : save + 2] += slower_s
    times = tuple(np.concatenate([[100.0], 100 + seconds.cumsum()]).tolist())
    return Pass(times, times, (stall_s,) * len(saves))


def test_stall_and_slower_steps_count_and_rows_that_take_longer_do_not():
    rng = np.random.default_rng(0)
    step_s = 1 + rng.random(50) + np.arange(50) / 10
    without = made_pass(step_s)
    cost = cost_of([made_pass(step_s, stall_s=0.5, slower_s=0.25)], [without], BLOCK)
    assert cost.num_saves == 8 - 1 == len(pair_differences(without.times_s, BLOCK))
    assert cost.stall_s == Measured(0.5, 0.5, 0.5)
    for measured in (cost.lost_s, cost.cpu_s):
        assert (measured.median, measured.low, measured.high) == pytest.approx((1.0, 1.0, 1.0))
    assert cost.share.median == pytest.approx(1 / 60)


def test_a_machine_that_is_slower_in_one_pass_than_in_the_other_is_no_cost():
    cost = cost_of([made_pass(np.full(50, 1.5), stall_s=0.5)], [made_pass(np.full(50, 1.0))], BLOCK)
    assert cost.lost_s.median == pytest.approx(0.5)


@pytest.mark.parametrize("number", [6, 9, 20, 50])
def test_the_interval_errs_as_rarely_as_it_says(number):
    measured = median_interval([float(value) for value in range(number)])
    below = int(measured.low) + 1  # values that must all be above the true median for it to be missed on this side
    missed = 2 * sum(math.comb(number, k) for k in range(below)) / 2**number
    assert missed <= 0.05 < missed + 2 * math.comb(number, below) / 2**number
    assert measured.high == number - 1 - measured.low


def test_the_verdict_is_unclear_where_the_limit_is_within_the_interval():
    def verdict(low, high):
        return Cost(6, Measured(0, 0, 0), Measured(0, 0, 0), Measured(0, 0, 0), Measured(low, low, high)).verdict

    assert verdict(0.001, 0.02) == "holds"
    assert verdict(0.001, 0.021) == "unclear"
    assert verdict(0.0201, 0.03) == "fails"


def test_too_few_saves_are_refused():
    with pytest.raises(UserError, match="at least 6 saves"):
        cost_of([made_pass(np.ones(40))], [made_pass(np.ones(40))], BLOCK)


def test_the_three_passes_of_a_round_take_the_same_steps_and_save_as_they_should(tiny_teacher, tmp_path):
    job = opened_job(tiny_teacher.path, overrides=[], requests=300, folder=tmp_path / "run")
    passes = compare(job, block=2, rounds=1, screen=Screen())
    (num_times,) = {len(one.times_s) for ones in passes.values() for one in ones}
    saves = (num_times - 1 - 1) // 4  # one at the very end is that of the end
    assert {name: len(ones[0].stalls_s) for name, ones in passes.items()} == {NONE: 0, ASYNC: saves, SYNC: saves}
    for ones in passes.values():
        assert list(ones[0].times_s) == sorted(ones[0].times_s)
        assert len(ones[0].cpu_s) == num_times
