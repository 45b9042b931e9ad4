from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from foundation.data.store import Store, microseconds
from serving.errors import DataError, MismatchError


def changed(schema, path, value):
    """The schema with one value changed."""
    content = schema.model_dump(mode="json")
    *parents, last = path
    place = content
    for name in parents:
        place = place[name]
    place[last] = value
    return Schema.model_validate(content)


def test_selection_is_by_surface_and_by_time_with_the_end_left_out(log):
    store = log.store
    start, end = int(store.times[200]), int(store.times[500])
    wanted = {log.schema.surfaces.index(name) for name in ("home", "cart")}
    expected = [
        position
        for position, (time, surface) in enumerate(zip(store.times, store.surfaces, strict=True))
        if start <= time < end and surface in wanted
    ]
    assert store.select(("home", "cart"), start=start, end=end).tolist() == expected
    assert 0 < len(expected) < 300
    assert store.select(start=end, end=start).tolist() == []
    with pytest.raises(DataError, match="kart"):
        store.select(("kart",))


def test_requests_are_in_time_order_and_row_groups_cover_them(log):
    assert (np.diff(log.store.times) >= 0).all()
    firsts = [group.first for group in log.store.row_groups]
    assert firsts == list(range(0, log.store.manifest.num_requests, 64))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tables", "item", "buckets"), 999),
        (("data", "events", "views", "limit"), 3),
        (("objectives", "click", "weight"), 2.0),
        (("data", "impressions", "files"), "elsewhere.parquet"),
    ],
)
def test_what_is_applied_when_reading_may_change_after_prepare(log, path, value):
    schema = changed(log.schema, path, value)
    assert Store.open(log.folder, schema).fingerprint == log.store.fingerprint


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("surfaces",), ["home", "search", "basket"]),
        (("data", "impressions", "time"), "shown_at"),
        (("data", "events", "views", "unit"), "ms"),
        (("objectives", "click", "column"), "clicked"),
        (("data", "impressions", "context"), []),
    ],
)
def test_a_store_of_other_columns_or_surfaces_is_refused(log, path, value):
    with pytest.raises(MismatchError, match="gemcut prepare"):
        Store.open(log.folder, changed(log.schema, path, value))


def test_no_store_is_an_error_that_says_what_to_run(tmp_path, log):
    with pytest.raises(DataError, match="gemcut prepare"):
        Store.open(tmp_path, log.schema)


def test_a_changed_store_is_refused(tables):
    prepare(tables.schema, tables.root, tables.folder)
    events = tables.folder / "events" / "views.arrow"
    content = bytearray(events.read_bytes())
    content[len(content) // 2] ^= 1
    events.write_bytes(content)
    with pytest.raises(MismatchError, match=r"views\.arrow"):
        Store.open(tables.folder, tables.schema, verify=True)
    events.write_bytes(content[:-1])
    with pytest.raises(MismatchError, match=r"views\.arrow"):
        Store.open(tables.folder, tables.schema)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"layout": 2}', b"{"])
def test_a_manifest_that_is_none_is_refused(tmp_path, log, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises((DataError, MismatchError), match="gemcut prepare"):
        Store.open(tmp_path, log.schema)


def test_a_store_of_another_layout_is_refused(tmp_path, log):
    (tmp_path / "manifest.json").write_bytes(b'{"layout": 1}')
    with pytest.raises(MismatchError, match="layout 1"):
        Store.open(tmp_path, log.schema)


def test_moments_are_microseconds_since_1970_in_any_zone():
    east = timezone(timedelta(hours=5, minutes=30))
    assert microseconds(datetime(1970, 1, 1, 5, 30, 0, 7, tzinfo=east)) == 7
    naive = datetime.fromisoformat("2017-10-14T18:16:39")
    assert microseconds(naive) == 1_508_004_999_000_000
