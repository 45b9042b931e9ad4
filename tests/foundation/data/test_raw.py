"""Raw requests against a reading of the source tables, row by row."""

from collections import Counter
from datetime import UTC

import pyarrow.parquet as pq
import pytest

from foundation.data.raw import raw_requests

SECOND_US = 1_000_000
POSITIONS = [0, 1, 63, 64, 191, 192, 350, 698, 699]


def rows_of(path):
    return pq.read_table(path).to_pylist()


def micros(moment):
    return moment * SECOND_US if isinstance(moment, int) else round(moment.timestamp()) * SECOND_US


@pytest.fixture(scope="module")
def source(log):
    """What the tables say: requests by their key, events by log and user, items."""
    shown = rows_of(log.root / "impressions-0.parquet") + rows_of(log.root / "impressions-1.parquet")
    requests, events = {}, {"views": {}, "orders": {}}
    for row in shown:
        requests.setdefault(row["request_id"], []).append(row)
    for name, by_user in events.items():
        for row in rows_of(log.root / f"{name}.parquet"):
            moment = row["time"] if isinstance(row["time"], int) else row["time"].replace(tzinfo=UTC)
            by_user.setdefault(row["user_id"], []).append(row | {"time": micros(moment)})
    items = {row["item_id"]: row["brand"] for row in rows_of(log.root / "items.parquet")}
    return requests, events, items


def expected_history(events, items, own, *, before, limit):
    """The newest events before a time; those of one time are a set, since the log gives them no order."""
    seen = sorted((row for row in events if row["time"] < before), key=lambda row: row["time"])
    seen = seen[-limit:] if limit else []
    return [(row["time"], row["item_id"], items.get(row["item_id"]), *(row[name] for name in own)) for row in seen]


def zipped(columns, names):
    return list(zip(*(columns[name] for name in names), strict=True))


def answered(request):
    """A request's candidates as a comparable set."""
    return sorted(zipped(request["candidates"], ("item", "brand", "price")))


def find(requests, raw):
    """The one source request with this raw request's user, time, surface and items."""
    head = raw["request"]
    (found,) = [
        rows
        for rows in requests.values()
        if (rows[0]["user_id"], micros(rows[0]["time"]), rows[0]["surface"])
        == (head["user"], head["time"], head["surface"])
        and sorted(row["item_id"] for row in rows) == sorted(raw["candidates"]["item"])
    ]
    return found


@pytest.mark.parametrize("limit", [0, 1, 5, 1000])
def test_raw_requests_are_what_the_tables_say(log, source, limit):
    requests, events, items = source
    for raw in raw_requests(log.store, POSITIONS, history_limits=dict.fromkeys(log.store.events, limit)):
        rows = find(requests, raw)
        head = raw["request"]
        assert head["shop"] == rows[0]["shop"]
        assert answered(raw) == sorted((row["item_id"], items.get(row["item_id"]), row["price"]) for row in rows)
        for name, own in [("views", ()), ("orders", ("shop", "quantity"))]:
            history = zipped(raw["histories"][name], ("time", "item", "brand", *own))
            of_user = events[name].get(head["user"], [])
            wanted = expected_history(of_user, items, own, before=head["time"], limit=limit)
            assert [event[0] for event in history] == [event[0] for event in wanted]
            every = set(expected_history(of_user, items, own, before=head["time"], limit=10**9))
            assert set(history) <= every
            if limit == 1000:
                assert Counter(history) == Counter(wanted)


def test_some_of_these_requests_have_history_and_some_events_are_too_late(log, source):
    _, events, _ = source
    raw = raw_requests(log.store, POSITIONS, history_limits=dict.fromkeys(log.store.events, 1000))
    lengths = [len(request["histories"]["views"]["time"]) for request in raw]
    logged = [len(events["views"].get(request["request"]["user"], [])) for request in raw]
    assert max(lengths) > 12, "more than the reader's limit, which is not that of raw requests"
    assert any(length < number for length, number in zip(lengths, logged, strict=True))


def test_an_item_without_a_brand_says_null(log):
    raw = raw_requests(log.store, range(50), history_limits=dict.fromkeys(log.store.events, 5))
    brands = [pair for request in raw for pair in zipped(request["candidates"], ("item", "brand"))]
    assert any(item % 7 == 0 for item, _ in brands)
    assert all((brand is None) == (item % 7 == 0) for item, brand in brands)


def test_positions_may_come_in_any_order(log):
    forwards = raw_requests(log.store, POSITIONS, history_limits=dict.fromkeys(log.store.events, 3))
    assert raw_requests(log.store, POSITIONS[::-1], history_limits=dict.fromkeys(log.store.events, 3)) == forwards[::-1]
    times = [request["request"]["time"] for request in forwards]
    assert times == [int(log.store.times[position]) for position in POSITIONS]
