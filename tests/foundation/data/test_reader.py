import threading
from dataclasses import fields

import numpy as np
import pytest

from foundation.data.batch import History, RequestBatch
from foundation.data.deal import work_of
from foundation.data.reader import Reader
from serving.errors import DataError, MismatchError

NUM_REQUESTS = 700
PER_ROW = ("candidate_ids", "candidate_numbers", "row_ids", "labels")


def reading(log, positions=None, size=32, **options):
    positions = log.store.select() if positions is None else positions
    return Reader(log.store, log.schema, positions, size, **options)


def joined(batches):
    """Batches as one, by concatenation and nothing else."""
    values = {
        field.name: np.concatenate([getattr(batch, field.name) for batch in batches])
        for field in fields(RequestBatch)
        if field.name not in ("candidate_offsets", "histories")
    }
    values["candidate_offsets"] = offsets([batch.candidate_offsets for batch in batches])
    values["histories"] = {
        log: History(
            offsets=offsets([batch.histories[log].offsets for batch in batches]),
            **{
                name: np.concatenate([getattr(batch.histories[log], name) for batch in batches])
                for name in ("ids", "numbers", "times")
            },
        )
        for log in batches[0].histories
    }
    return RequestBatch(**values)


def offsets(pieces):
    return np.concatenate([[0], *(np.diff(piece) for piece in pieces)]).cumsum()


def assert_equal(left, right):
    for field in fields(type(left)):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            for name in a:
                assert_equal(a[name], b[name])
        else:
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


@pytest.fixture(scope="module")
def whole(log):
    """All requests as one batch."""
    (batch,) = reading(log, size=NUM_REQUESTS)
    return batch


def test_each_request_comes_once_in_time_order(log, whole):
    assert whole.positions.tolist() == list(range(NUM_REQUESTS))
    assert (np.diff(whole.times) >= 0).all()
    assert len(set(whole.row_ids.tolist())) == whole.num_candidates == log.store.manifest.num_rows


@pytest.mark.parametrize("size", [1, 7, 64, 100, 699, 5000])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_is_read_does_not_depend_on_batch_size_or_prefetch(log, whole, size, prefetch):
    batches = list(reading(log, size=size, prefetch=prefetch))
    assert [batch.num_requests for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert_equal(joined(batches), whole)


def in_order(batch):
    """The same requests by ascending position, one by one."""
    return joined([one_request(batch, place) for place in np.argsort(batch.positions)])


def one_request(batch, place):
    per_row = slice(*batch.candidate_offsets[place : place + 2])
    taken = {
        field.name: getattr(batch, field.name)[per_row if field.name in PER_ROW else slice(place, place + 1)]
        for field in fields(RequestBatch)
        if field.name not in ("candidate_offsets", "histories")
    }
    histories = {}
    for log, history in batch.histories.items():
        start, end = history.offsets[place : place + 2]
        rows = (getattr(history, name)[start:end] for name in ("ids", "numbers", "times"))
        histories[log] = History(np.array([0, end - start]), *rows)
    offsets = np.array([0, per_row.stop - per_row.start])
    return RequestBatch(**taken, candidate_offsets=offsets, histories=histories)


def work_in(batch):
    return batch.num_candidates + sum(len(history.times) for history in batch.histories.values())


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("size", [32, 3])
def test_ranks_together_read_what_one_reads_step_by_step(log, world_size, size):
    alone = list(reading(log, size=size))
    ranks = [list(reading(log, size=size, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert [len(batches) for batches in ranks] == [len(alone)] * world_size
    for step, batch in enumerate(alone):
        assert_equal(in_order(joined([batches[step] for batches in ranks])), batch)
        for batches in ranks:
            assert (np.diff(batches[step].positions) > 0).all()


def test_no_rank_has_more_work_than_the_mean_and_one_request(log):
    alone = list(reading(log, size=64))
    ranks = [list(reading(log, size=64, rank=rank, world_size=3)) for rank in range(3)]
    for step, batch in enumerate(alone):
        heaviest = max(work_in(one_request(batch, place)) for place in range(batch.num_requests))
        assert max(work_in(batches[step]) for batches in ranks) <= work_in(batch) / 3 + heaviest


def test_the_work_of_a_request_is_what_is_read_for_it(log, whole):
    limits = {name: events.limit for name, events in log.schema.data.events.items()}
    expected = [work_in(one_request(whole, place)) for place in range(NUM_REQUESTS)]
    assert work_of(log.store, log.store.select(), limits).tolist() == expected


@pytest.mark.parametrize("dealt", [1, 3, 7])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_what_is_read_does_not_depend_on_how_many_batches_are_dealt_at_once(log, monkeypatch, dealt, rank, world_size):
    ranks = {"rank": rank, "world_size": world_size, "prefetch": 0}
    with reading(log, **ranks) as reader:
        expected = list(reader)
    monkeypatch.setattr("foundation.data.reader.BATCHES_DEALT", dealt)
    with reading(log, **ranks) as reader:
        found = list(reader)
    assert len(found) == len(expected) > 2 * dealt
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


def test_a_rank_without_requests_still_takes_the_step(log):
    positions = log.store.select()[:1]
    batches = [next(iter(reading(log, positions, rank=rank, world_size=4))) for rank in range(4)]
    assert [batch.num_requests for batch in batches] == [1, 0, 0, 0]
    for batch in batches[1:]:
        assert batch.candidate_offsets.tolist() == [0]
        assert batch.histories["orders"].offsets.tolist() == [0]
    assert_equal(joined(batches), batches[0])


def test_a_selection_yields_its_requests_and_reads_no_other_row_group(log, whole):
    positions = np.array([5, 6, 63, 64, 130, 699])
    batch = joined(list(reading(log, positions, size=4)))
    starts, ends = whole.candidate_offsets[positions], whole.candidate_offsets[positions + 1]
    rows = np.concatenate([np.arange(a, b) for a, b in zip(starts, ends, strict=True)])
    np.testing.assert_array_equal(batch.positions, positions)
    for name in PER_ROW:
        np.testing.assert_array_equal(getattr(batch, name), getattr(whole, name)[rows])
    np.testing.assert_array_equal(batch.ids, whole.ids[positions])


def test_nothing_selected_is_no_batch(log):
    assert list(reading(log, np.zeros(0, np.int64))) == []


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("stop", [1, 9])
def test_stopped_and_resumed_is_never_stopped(log, stop, prefetch):
    straight = list(reading(log))
    with reading(log, prefetch=prefetch) as first:
        for _, before in zip(range(stop), first, strict=False):
            last = before
    assert_equal(last, straight[stop - 1])
    resumed = reading(log, prefetch=prefetch)
    resumed.load_state_dict(first.state_dict())
    assert len(resumed) == len(straight) - stop
    for batch, expected in zip(resumed, straight[stop:], strict=True):
        assert_equal(batch, expected)
    assert resumed.state_dict()["next"] == NUM_REQUESTS
    assert list(resumed) == []


def test_the_state_is_of_what_was_yielded_not_of_what_was_made_ahead(log):
    with reading(log, size=10, prefetch=4) as reader:
        batches = iter(reader)
        assert reader.state_dict()["next"] == 0
        for step in range(1, 4):
            next(batches)
            assert reader.state_dict()["next"] == 10 * step


def test_resuming_with_other_ranks_and_batch_size_loses_no_request_and_repeats_none(log, whole):
    first = [reading(log, size=30, rank=rank, world_size=3) for rank in range(3)]
    before = [batch for reader in first for batch in [next(iter(reader)), next(iter(reader))]]
    states = [reader.state_dict() for reader in first]
    assert states[0] == states[1] == states[2]
    second = [reading(log, size=50, rank=rank, world_size=2) for rank in range(2)]
    for reader in second:
        reader.load_state_dict(states[0])
    after = [batch for reader in second for batch in reader]
    seen = np.concatenate([batch.row_ids for batch in before + after])
    assert sorted(seen.tolist()) == sorted(whole.row_ids.tolist())


def test_iterating_again_goes_on_where_the_last_iteration_was_left(log):
    reader = reading(log, size=10)
    for batch in reader:
        if batch.positions[0] == 20:
            break
    assert next(iter(reader)).positions[0] == 30


def test_the_state_of_another_selection_is_refused(log):
    other = reading(log, log.store.select(("home",)), size=10)
    next(iter(other))
    with pytest.raises(MismatchError, match="start afresh"):
        reading(log).load_state_dict(other.state_dict())


def test_the_state_of_another_store_is_refused(log):
    state = reading(log).state_dict()
    assert state["next"] == 0
    with pytest.raises(MismatchError, match="start afresh"):
        reading(log).load_state_dict(state | {"digest": "0" * 64})


def test_a_later_selection_that_begins_with_what_was_read_goes_on(log, whole):
    earlier = reading(log, log.store.select()[:100], size=30)
    before = list(earlier)
    later = reading(log, size=30)
    later.load_state_dict(earlier.state_dict())
    assert_equal(joined([*before, *later]), whole)


def test_a_selection_shorter_than_what_was_read_is_refused(log):
    longer = reading(log, size=30)
    list(longer)
    with pytest.raises(MismatchError, match="start afresh"):
        reading(log, log.store.select()[:100]).load_state_dict(longer.state_dict())


def test_history_limits_keep_the_newest(log, whole):
    (short,) = reading(log, size=NUM_REQUESTS, history_limits={"views": 2, "orders": 0})
    assert len(short.histories["orders"].times) == 0
    for place in range(NUM_REQUESTS):
        new, old = short.histories["views"], whole.histories["views"]
        kept = slice(max(old.offsets[place], old.offsets[place + 1] - 2), old.offsets[place + 1])
        assert new.times[new.offsets[place] : new.offsets[place + 1]].tolist() == old.times[kept].tolist()


def test_no_event_at_or_after_its_request(whole):
    for history in whole.histories.values():
        assert len(history.times)
        request_times = np.repeat(whole.times, np.diff(history.offsets))
        assert (history.times < request_times).all()


def test_leaving_early_leaves_no_thread(log):
    with reading(log, size=5) as reader:
        next(iter(reader))
    for _ in reading(log, size=5):
        break
    assert [thread for thread in threading.enumerate() if thread.name == "prefetch"] == []


def test_a_damaged_row_group_is_an_error_of_the_consumer_that_names_the_file(tables):
    from foundation.data.prepare import prepare
    from foundation.data.store import Store

    prepare(tables.schema, tables.root, tables.folder)
    part = tables.folder / "requests" / "part-00001.parquet"
    content = bytearray(part.read_bytes())
    content[4:2000] = bytes(1996)
    part.write_bytes(content)
    store = Store.open(tables.folder, tables.schema)
    with pytest.raises(DataError, match=r"part-00001\.parquet.*gemcut prepare"):
        list(Reader(store, tables.schema, store.select(), 64))
