"""What each request of a store could know, as running sums: that another store begins alike is seen at one place.

`past.arrow` has a row a request, in order, and in it 64-bit sums of hashes, as int64, of all that was known by then:

    requests      this request and those before it: ids, time, surface, features, candidates
    events        every event of any user before this request's time
    statistics    statistics of this request and those before it
    label.NAME    labels of this request and those before it

A hash covers raw ids, not row numbers of the store, and an element's place, so that order counts. 64 bits are enough
against accidents; nobody forges his own log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from foundation.data.batch import Int64Array
from foundation.data.columns import map_columns, write_columns
from foundation.data.encode import filled
from foundation.data.schema import Schema
from foundation.data.staging import published
from foundation.data.store import PAST_FILE
from serving.ids import mix64, salt_of, string_key

REQUESTS, EVENTS, STATISTICS = "requests", "events", "statistics"
EVENTS_AT_ONCE = 2**20
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
NOTHING = np.uint64(0xD1B54A32D192ED03)
"""Stands for a value that is not there."""

Sums = NDArray[np.uint64]


def write_past(schema: Schema, store: Path, *, scratch: Path) -> None:
    """`past.arrow` of a store whose other files are there."""
    target = store / PAST_FILE
    if target.exists():
        return
    parts = sorted((store / "requests").glob("*.parquet"))
    times = np.concatenate([pq.read_table(part, columns=["time"])["time"].to_numpy() for part in parts])
    entities = {
        name: _folded([_hashes(column) for column in _own(map_columns(store / f"{name}s.arrow"), name)])
        for name in ("user", "item")
    }
    events = np.zeros(len(times), dtype=np.uint64)
    for log in schema.data.events:
        _add_events(events, times, store, log, users=entities["user"], items=entities["item"])
    names = [REQUESTS, EVENTS, STATISTICS, *(f"label.{name}" for name in schema.objectives)]
    fields = pa.schema([(name, pa.int64()) for name in names])
    with published(target) as aside:
        batches = _batches(parts, np.cumsum(events), names, users=entities["user"], items=entities["item"])
        write_columns(aside, fields, batches, scratch=scratch)


def _batches(
    parts: list[Path], events: Sums, names: list[str], *, users: Sums, items: Sums
) -> Iterator[pa.RecordBatch]:
    """Running sums of all requests, a row group at a time."""
    sums, first = dict.fromkeys(names, np.uint64(0)), 0
    for part in parts:
        beside = part.parent.parent / "statistics" / part.name
        with pq.ParquetFile(part) as requests, pq.ParquetFile(beside if beside.exists() else part) as statistics:
            for group in range(requests.num_row_groups):
                table = requests.read_row_group(group)
                more = statistics.read_row_group(group) if beside.exists() else table.select([])
                number = np.arange(first, first + len(table), dtype=np.uint64)
                hashes = {REQUESTS: _of_requests(table, users, items), STATISTICS: _of_columns(more, len(table))}
                hashes |= {name: _of_columns(table.select([name]), len(table)) for name in names[3:]}
                columns = {EVENTS: events[first : first + len(table)]}
                for name, values in hashes.items():
                    columns[name] = sums[name] + np.cumsum(mix64(values + number * GOLDEN), dtype=np.uint64)
                    sums[name] = columns[name][-1]
                yield pa.RecordBatch.from_arrays([pa.array(columns[name].view(np.int64)) for name in names], names)
                first += len(table)


def _of_requests(table: pa.Table, users: Sums, items: Sums) -> Sums:
    """All that requests say but their labels."""
    raw = {name: table[name].combine_chunks() for name in table.column_names}
    context = [name for name in raw if name.startswith("context.")]
    candidates = raw["candidates"]
    own = [_hashes(raw[name].flatten()) for name in ("row_id", *(n for n in raw if n.startswith("candidate.")))]
    shown = _folded([items[candidates.flatten().to_numpy()], *own])
    single = [_hashes(raw[name]) for name in ("request", "time", "surface", *context)]
    return _folded([*single, users[raw["user"].to_numpy()], _of_lists(shown, candidates)])


def _of_columns(table: pa.Table, num_rows: int) -> Sums:
    """Values or lists of values of every column, by name."""
    hashes = [np.zeros(num_rows, dtype=np.uint64)]
    for name in sorted(table.column_names):
        column = table[name].combine_chunks()
        is_list = isinstance(column, pa.ListArray)
        hashes.append(_of_lists(_hashes(column.flatten()), column) if is_list else _hashes(column))
    return _folded(hashes)


def _add_events(sums: Sums, times: Int64Array, store: Path, log: str, *, users: Sums, items: Sums) -> None:
    """Add each event of a log to the first request after it; those after the last request are nobody's past yet."""
    events, ranges = map_columns(store / "events" / f"{log}.arrow"), map_columns(store / "users.arrow")
    starts, ends = (ranges[f"{log}_{end}"].to_numpy() for end in ("start", "end"))
    features = [name for name in events.schema.names if name.startswith("feature.")]
    for first in range(0, events.num_rows, EVENTS_AT_ONCE):
        piece = events.slice(first, EVENTS_AT_ONCE)
        number = np.arange(first, first + piece.num_rows)
        who = np.searchsorted(ends, number, side="right")
        hashes = _folded(
            [
                np.full(piece.num_rows, salt_of(log), dtype=np.uint64),
                users[who],
                (number - starts[who]).astype(np.uint64),  # the order of events of one moment counts
                items[piece["item"].to_numpy()],
                *(_hashes(piece[name]) for name in ("time", *features)),
            ]
        )
        after = np.searchsorted(times, piece["time"].to_numpy(), side="right")
        known = after < len(times)
        np.add.at(sums, after[known], hashes[known])


def _own(table: pa.RecordBatch, key: str) -> list[pa.Array]:
    return [table[name] for name in table.schema.names if name == key or name.startswith("feature.")]


def _hashes(column: pa.Array) -> Sums:
    """[N]: of integers and numbers by their bits, of strings by their text."""
    if pa.types.is_dictionary(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string(column.type):
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        distinct = [NOTHING if text is None else string_key(text, 0) for text in coded.dictionary.to_pylist()]
        return np.array([*distinct, NOTHING], dtype=np.uint64)[filled(coded.indices, len(distinct))]
    kind = np.float64 if pa.types.is_floating(column.type) else np.int64
    hashes = mix64(filled(column, 0).astype(kind).view(np.uint64))
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = NOTHING
    return hashes


def _folded(columns: Sequence[Sums]) -> Sums:
    """One hash of several, in their order."""
    hashes = np.zeros_like(columns[0])
    for column in columns:
        hashes = mix64(hashes * GOLDEN + column)
    return hashes


def _of_lists(hashes: Sums, lists: pa.ListArray) -> Sums:
    """One hash a list out of those of its elements, in their order."""
    offsets = lists.offsets.to_numpy() - lists.offsets[0].as_py()
    within = np.arange(len(hashes)) - np.repeat(offsets[:-1], np.diff(offsets))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mix64(hashes + within.astype(np.uint64) * GOLDEN))])
    return sums[offsets[1:]] - sums[offsets[:-1]]
