import torch
from hypothesis import given
from hypothesis import strategies as st

from foundation.model.layout import (
    bucket_by_length,
    gather_buckets,
    gather_padded,
    newest,
    padded_places,
    scatter_back,
    with_zero_row,
)

REQUESTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=12)
LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


@given(requests=REQUESTS)
def test_buckets_hold_each_event_and_candidate_of_each_request_once(requests):
    lengths, counts = zip(*requests, strict=True)
    offsets, candidates = offsets_of(lengths), offsets_of(counts)
    seen_events, seen_candidates = [], []
    for bucket in bucket_by_length(offsets, candidates):
        for events, asked in zip(bucket.events.tolist(), bucket.candidates.tolist(), strict=True):
            own_events = [place for place in events if place < sum(lengths)]
            own_candidates = [place for place in asked if place < sum(counts)]
            request = next(r for r in range(len(lengths)) if offsets[r] == own_events[0] and lengths[r])
            assert own_events == list(range(offsets[request], offsets[request + 1]))
            assert own_candidates == list(range(candidates[request], candidates[request + 1]))
            seen_events += own_events
            seen_candidates += own_candidates
    assert sorted(seen_events) == list(range(sum(lengths)))
    with_history = [place for r, length in enumerate(lengths) if length for place in range(*candidates[r : r + 2])]
    assert sorted(seen_candidates) == with_history


@given(requests=REQUESTS)
def test_less_than_half_of_a_row_is_padding(requests):
    lengths, counts = zip(*requests, strict=True)
    for bucket in bucket_by_length(offsets_of(lengths), offsets_of(counts)):
        for places, end in [(bucket.events, sum(lengths)), (bucket.candidates, sum(counts))]:
            assert ((places < end).sum(1) * 2 > places.shape[1]).all()


def test_lengths_next_to_a_power_of_two_fall_in_the_right_bucket():
    offsets = offsets_of([1, 2, 3, 4, 5, 8, 9, 16384, 16385])
    buckets = bucket_by_length(offsets, offsets_of([1] * 9))
    requests = [bucket.candidates.flatten().tolist() for bucket in buckets]
    assert requests == [[0], [1], [2, 3], [4, 5], [6], [7], [8]]


@given(lengths=LENGTHS, limit=st.integers(1, 8))
def test_newest_keeps_the_last_events_of_each_request(lengths, limit):
    offsets = offsets_of(lengths)
    places, kept = newest(offsets, limit)
    expected = [list(range(offsets[r], offsets[r + 1]))[-limit:] for r in range(len(lengths))]
    assert places.tolist() == [place for request in expected for place in request]
    assert kept.tolist() == offsets_of([len(request) for request in expected]).tolist()


@given(lengths=LENGTHS, chosen=st.sets(st.integers(0, 11)), width=st.integers(1, 3))
def test_gathered_rows_are_the_requests_own_and_zeros_elsewhere(lengths, chosen, width):
    requests = sorted(request for request in chosen if request < len(lengths))
    offsets = offsets_of(lengths)
    flat = torch.arange(1.0, 1 + sum(lengths) * width).reshape(-1, width)
    padded = gather_padded(with_zero_row(flat), padded_places(offsets, torch.tensor(requests, dtype=torch.int64)))
    assert padded.shape[0] == len(requests)
    for place, request in enumerate(requests):
        own = flat[offsets[request] : offsets[request + 1]]
        assert torch.equal(padded[place, : len(own)], own)
        assert not padded[place, len(own) :].any()


def test_the_gradient_of_a_gather_counts_each_use_and_no_padding():
    flat = torch.ones(3, 2, requires_grad=True)
    gather_padded(with_zero_row(flat), torch.tensor([[0, 1], [1, 3]])).sum().backward()
    assert flat.grad.tolist() == [[1, 1], [2, 2], [0, 0]]


@given(requests=REQUESTS)
def test_what_buckets_make_of_their_rows_finds_the_way_back(requests):
    lengths, counts = zip(*requests, strict=True)
    buckets = bucket_by_length(offsets_of(lengths), offsets_of(counts))
    flat = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
    rows, places = with_zero_row(flat), [bucket.events for bucket in buckets]
    back = scatter_back([gather_padded(rows, place) for place in places], places, len(flat))
    assert torch.equal(back, flat)
    (back * back).sum().backward()
    assert torch.equal(flat.grad, 2 * flat)


@given(lengths=LENGTHS)
def test_one_gather_for_all_buckets_gives_each_its_rows(lengths):
    offsets = offsets_of(lengths)
    flat = torch.arange(1.0, 1 + 2 * sum(lengths)).reshape(-1, 2)
    places = [bucket.events for bucket in bucket_by_length(offsets, torch.arange(len(offsets)))]
    for part, place in zip(gather_buckets(flat, places), places, strict=True):
        rows = [[[0.0, 0.0] if at == len(flat) else flat[at].tolist() for at in row] for row in place.tolist()]
        assert part.tolist() == rows
