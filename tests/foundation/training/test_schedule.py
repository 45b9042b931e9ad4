"""The order of first and second visits, beside a simulation that waits for each label."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foundation.training.schedule import FIRST, turns

TIMES = st.lists(st.integers(0, 30), max_size=25).map(sorted)


SIZES = st.lists(st.integers(1, 6), min_size=13, max_size=13)
"""Requests a batch, by delay."""


def simulated(times, sizes):
    """At each batch of new requests, look which late batches have been due strictly before it begins."""
    waiting = []
    for delay, moments in times.items():
        batches = [moments[start : start + sizes[delay]] for start in range(0, len(moments), sizes[delay])]
        if delay == FIRST:
            begins = [batch[0] for batch in batches]
        else:
            waiting += [(batch[-1] + delay, delay) for batch in batches]
    order = []
    for begin in begins:
        due = sorted(entry for entry in waiting if entry[0] < begin)
        order += [delay for _, delay in due] + [FIRST]
        waiting = [entry for entry in waiting if entry[0] >= begin]
    return order + [delay for _, delay in sorted(waiting)]


def as_arrays(times):
    return {delay: np.array(moments, dtype=np.int64) for delay, moments in times.items()}


@given(first=TIMES, late=st.dictionaries(st.integers(1, 12), st.integers(0, 25), max_size=3), sizes=SIZES)
def test_the_order_is_that_of_a_simulation(first, late, sizes):
    times = {FIRST: first} | {delay: first[:count] for delay, count in late.items()}
    assert turns(as_arrays(times), dict(enumerate(sizes))).tolist() == simulated(times, sizes)


@given(first=TIMES, late=st.dictionaries(st.integers(1, 12), st.integers(0, 25), max_size=3), sizes=SIZES)
def test_going_on_from_any_turn_is_the_rest_of_the_order(first, late, sizes):
    left = as_arrays({FIRST: first} | {delay: first[:count] for delay, count in late.items()})
    order = turns(left, dict(enumerate(sizes))).tolist()
    for place, delay in enumerate(order):
        assert turns(left, dict(enumerate(sizes))).tolist() == order[place:]
        left[delay] = left[delay][sizes[delay] :]


def test_a_label_that_is_ripe_as_a_batch_begins_comes_after_it():
    assert turns(as_arrays({FIRST: [0, 10], 10: [0]}), {FIRST: 1, 10: 1}).tolist() == [FIRST, FIRST, 10]
    assert turns(as_arrays({FIRST: [0, 10], 9: [0]}), {FIRST: 1, 9: 1}).tolist() == [FIRST, 9, FIRST]


def test_a_late_batch_waits_for_the_label_of_its_last_request():
    assert turns(as_arrays({FIRST: [0, 5, 8, 11], 5: [0, 5]}), {FIRST: 2, 5: 2}).tolist() == [FIRST, FIRST, 5]
    assert turns(as_arrays({FIRST: [0, 5, 11, 12], 5: [0, 5]}), {FIRST: 2, 5: 2}).tolist() == [FIRST, 5, FIRST]
