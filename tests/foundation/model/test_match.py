import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foundation.model.layout import bucket_by_length
from foundation.model.match import DECAYS_DAYS, NUM_SIGNALS, match_signals
from serving.ages import DAY_US

FLOAT32 = 1e-5  # sums of at most a dozen float32 terms of size one
IDS = st.tuples(st.integers(0, 3), st.integers(0, 3))
EVENT = st.tuples(IDS, st.integers(1, 400 * DAY_US))
REQUEST = st.tuples(st.lists(IDS, min_size=1, max_size=4), st.lists(EVENT, max_size=9))


def offsets_of(rows):
    return torch.tensor([0, *map(len, rows)]).cumsum(0)


def signals_of(requests):
    candidates, events = [r[0] for r in requests], [r[1] for r in requests]
    candidate_ids = torch.tensor([ids for request in candidates for ids in request], dtype=torch.int64).reshape(-1, 2)
    event_ids = torch.tensor([ids for request in events for ids, _ in request], dtype=torch.int64).reshape(-1, 2)
    ages = torch.tensor([age for request in events for _, age in request], dtype=torch.int64)
    buckets = bucket_by_length(offsets_of(events), offsets_of(candidates))
    return match_signals(candidate_ids, event_ids, ages.float() / DAY_US, buckets)


def expected_of(candidate, events):
    row = []
    for field, wanted in enumerate(candidate):
        days = [age / DAY_US for ids, age in events if wanted > 0 and ids[field] == wanted]
        row.append(math.log1p(len(days)))
        row += [math.log1p(sum(math.exp(-d / decay) for d in days)) for decay in DECAYS_DAYS]
        row.append(max((1 / (1 + d) for d in days), default=0.0))
    return row


@given(requests=st.lists(REQUEST, min_size=1, max_size=6))
def test_signals_are_the_definition_request_by_request(requests):
    expected = [expected_of(candidate, events) for candidates, events in requests for candidate in candidates]
    signals = signals_of(requests)
    assert signals.shape == (len(expected), 2 * NUM_SIGNALS)
    torch.testing.assert_close(signals, torch.tensor(expected), rtol=FLOAT32, atol=FLOAT32)


def test_a_missing_id_matches_nothing_not_even_a_missing_id():
    assert not signals_of([([(0, 0)], [((0, 0), DAY_US)])]).any()


def test_an_event_of_just_now_counts_whole():
    signals = signals_of([([(1, 0)], [((1, 0), 1)])])[0, :NUM_SIGNALS]
    torch.testing.assert_close(signals, torch.tensor([math.log(2)] * 4 + [1.0]))


@pytest.mark.parametrize("large", [2**24, 2**31, 2**40])
def test_neighbours_among_large_ids_are_told_apart(large):
    """A float32 can not tell 2^24 and 2^24 + 1 apart."""
    signals = signals_of([([(large, large + 1)], [((large + 1, large + 1), DAY_US)])])
    assert signals[0].ne(0).tolist() == [False] * NUM_SIGNALS + [True] * NUM_SIGNALS


def test_candidates_of_a_batch_without_any_event_match_nothing():
    assert signals_of([([(1, 2)], []), ([(3, 1)], [])]).tolist() == [[0.0] * 2 * NUM_SIGNALS] * 2


def test_a_batch_has_the_signals_of_each_log_side_by_side_and_makes_them_once(request_of, batched):
    batch = batched([request_of(0, views=3, orders=0), request_of(1, views=1, orders=5)])
    matches = batch.matches(2)
    for place, history in enumerate(batch.histories.values()):
        expected = match_signals(
            batch.candidate_ids[:, :2],
            history.ids[:, :2],
            history.ages_days,
            bucket_by_length(history.offsets, batch.candidate_offsets),
        )
        own = slice(place * 2 * NUM_SIGNALS, (place + 1) * 2 * NUM_SIGNALS)
        torch.testing.assert_close(matches[:, own], expected, rtol=0, atol=0)
    assert matches.shape[1] == 2 * 2 * NUM_SIGNALS
    assert batch.matches(2) is matches
    assert batch.matches(1).shape[1] == 2 * NUM_SIGNALS
