"""The counter that a server is fed with: what it counts, in which order, and what it forgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.statistics import HOUR_US, Counter, StatisticRule

WINDOWED = StatisticRule("seen", "views", ("user",), windows_us=(10, None), recency=True)
SHOWN = StatisticRule("shown", "impressions", ("item", "surface"), (10, None), False, "click", 5)


def view(time, user=1):
    return {"time": time, "user": user}


def shown(time, item=1):
    return {"time": time, "item": item, "surface": "home"}


def test_values_are_named_by_window_recency_objective_and_rate():
    assert [value.name for value in WINDOWED.values] == ["seen_count_10us", "seen_count_all", "seen_recency"]
    assert [value.name for value in SHOWN.values] == [
        "shown_count_10us",
        "shown_count_all",
        "shown_click_10us",
        "shown_click_all",
        "shown_click_rate_10us",
        "shown_click_rate_all",
    ]


@pytest.mark.parametrize(
    ("now", "in_window"),
    [(100, 0), (101, 1), (110, 1), (111, 0)],
    ids=["its own time is not its past", "the next moment", "a window's first moment is in it", "one before is not"],
)
def test_the_boundary_is_that_of_histories(now, in_window):
    counter = Counter([WINDOWED])
    counter.add("views", view(100))
    assert counter.values({"user": 1}, now)["seen_count_10us"] == in_window
    assert counter.values({"user": 1}, now)["seen_count_all"] == (now > 100)


def test_a_label_counts_when_it_is_settled_and_only_if_it_is_known():
    counter = Counter([SHOWN])
    for time in (0, 1, 2):
        counter.add("impressions", shown(time))
    counter.add_label("click", shown(0), 1)
    counter.add_label("click", shown(1), 0)
    row = {"item": 1, "surface": "home"}
    assert counter.values(row, 5)["shown_count_all"] == 3
    assert counter.values(row, 5)["shown_click_rate_all"] is None, "settled at 5, which is not before 5"
    assert counter.values(row, 6)["shown_click_rate_all"] == 1
    assert counter.values(row, 7)["shown_click_rate_all"] == 0.5
    assert counter.values(row, 15)["shown_click_10us"] == 1, "a window of labels is about when they are settled"
    assert counter.values(row, 16)["shown_click_10us"] == 0
    assert counter.values(row, 16)["shown_click_all"] == 1


def test_a_missing_part_of_the_key_makes_everything_missing_and_counts_nowhere():
    counter = Counter([SHOWN, WINDOWED])
    counter.add("impressions", shown(0) | {"surface": None})
    counter.add_label("click", shown(0) | {"surface": None}, 1)
    missing = counter.values({"user": 1, "item": 1, "surface": None}, 9)
    assert {name: missing[name] for name in missing if name.startswith("shown")} == {
        value.name: None for value in SHOWN.values
    }
    assert missing["seen_count_all"] == 0
    assert counter.values({"user": 1, "item": 1, "surface": "home"}, 9)["shown_count_all"] == 0


def test_an_integer_is_its_64_bit_pattern_and_text_is_no_integer():
    counter = Counter([WINDOWED])
    counter.add("views", view(0, user=-1))
    assert counter.values({"user": 2**64 - 1}, 1)["seen_count_all"] == 1
    assert counter.values({"user": np.int64(-1)}, 1)["seen_count_all"] == 1
    assert counter.values({"user": "-1"}, 1)["seen_count_all"] == 0


def test_other_sources_and_objectives_are_not_counted():
    counter = Counter([WINDOWED])
    counter.add("orders", view(0))
    counter.add_label("click", view(0), 1)
    assert counter.values({"user": 1}, 9) == {"seen_count_10us": 0, "seen_count_all": 0, "seen_recency": None}


def test_values_are_rounded_to_float32_once():
    counter = Counter([WINDOWED])
    counter.add("views", view(0))
    assert counter.values({"user": 1}, HOUR_US // 7)["seen_recency"] == float(np.float32((HOUR_US // 7) / HOUR_US))


moments = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 2), st.booleans()), max_size=25)


def fed(events):
    counter = Counter([WINDOWED, SHOWN])
    for time, key, positive in events:
        counter.add("views", view(time, key))
        counter.add("impressions", shown(time, key))
        counter.add_label("click", shown(time, key), int(positive))
    return counter


@given(moments, st.randoms(use_true_random=False), st.integers(0, 60))
def test_events_may_come_in_any_order_and_from_the_future(events, random, now):
    mixed = events[:]
    random.shuffle(mixed)
    past = [event for event in events if event[0] < now]
    for key in (1, 2):
        row = {"user": key, "item": key, "surface": "home"}
        assert fed(events).values(row, now) == fed(mixed).values(row, now) == fed(past).values(row, now)


@given(moments, st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_forgetting_changes_no_value_from_there_on(events, marks):
    whole, lean = fed(events), fed(events)
    for mark in sorted(marks):
        lean.forget(mark)
        for now in (mark, mark + 3, mark + 30):
            for key in (1, 2):
                row = {"user": key, "item": key, "surface": "home"}
                assert lean.values(row, now) == whole.values(row, now)


def test_what_no_window_reaches_takes_no_memory():
    only_window = StatisticRule("seen", "views", ("user",), windows_us=(10,), recency=False)
    counter = Counter([only_window, WINDOWED])
    for time in range(1000):
        counter.add("views", view(time, user=time % 50))
    counter.forget(2000)
    held = [[len(seen.events.times) for seen in counts.values()] for counts in counter._counts]
    assert held == [[], [0] * 50]
    assert counter.values({"user": 3}, 2000)["seen_count_all"] == 20
