from dataclasses import fields

import numpy as np

from foundation.data.batch import RequestBatch
from foundation.efficiency.layouts import chosen, impression_major, num_bytes, one_by_one

LENGTHS, COUNTS = [2, 0, 5], [3, 1, 2]


def equal(left, right):
    for field in fields(RequestBatch):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if field.name == "histories":
            for log in a:
                for part in ("offsets", "ids", "numbers", "times"):
                    np.testing.assert_array_equal(getattr(a[log], part), getattr(b[log], part))
        else:
            np.testing.assert_array_equal(a, b)


def test_all_requests_in_order_are_the_batch(batch_of):
    batch = batch_of(LENGTHS, COUNTS)
    equal(chosen(batch, np.arange(3)), batch)


def test_each_request_alone_has_what_is_its_own(batch_of):
    batch = batch_of(LENGTHS, COUNTS)
    alone = list(one_by_one(batch))
    assert [one.num_candidates for one in alone] == COUNTS
    assert [one.num_events for one in alone] == LENGTHS
    rows = np.concatenate([one.candidate_ids for one in alone])
    np.testing.assert_array_equal(rows, batch.candidate_ids)
    events = np.concatenate([one.histories["orders"].ids for one in alone])
    np.testing.assert_array_equal(events, batch.histories["orders"].ids)
    assert [one.users.tolist() for one in alone] == [[user] for user in batch.users]


def test_impression_major_repeats_the_request_for_each_candidate(batch_of):
    batch = batch_of(LENGTHS, COUNTS)
    wide = impression_major(batch)
    assert wide.num_requests == wide.num_candidates == sum(COUNTS)
    assert wide.candidate_offsets.tolist() == list(range(sum(COUNTS) + 1))
    np.testing.assert_array_equal(wide.users, np.repeat(batch.users, COUNTS))
    np.testing.assert_array_equal(wide.labels, batch.labels)
    assert np.diff(wide.histories["orders"].offsets).tolist() == [2, 2, 2, 0, 5, 5]
    for place, request in enumerate([0, 0, 0, 1, 2, 2]):
        got, expected = chosen(wide, np.array([place])), chosen(batch, np.array([request]))
        np.testing.assert_array_equal(got.histories["orders"].ids, expected.histories["orders"].ids)
        np.testing.assert_array_equal(got.ids, expected.ids)


def test_bytes_are_of_every_array(batch_of):
    small, large = batch_of([1], [1]), batch_of([2], [1])
    history = large.histories["orders"]
    event = (history.ids.nbytes + history.numbers.nbytes + history.times.nbytes) / 2
    assert num_bytes(large) - num_bytes(small) == event
