"""Logged requests as a client would send them: raw features, histories as of the request; for replay and for parity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foundation.data.batch import Int64Array
from foundation.data.columns import map_columns, parquet_rows
from foundation.data.history import as_of
from foundation.data.schema import ITEM, USER, Feature
from foundation.data.store import Store

Columns = dict[str, list[Any]]


def raw_requests(store: Store, positions: Int64Array, *, history_limits: dict[str, int]) -> list[dict[str, Any]]:
    """Requests at some positions, in their order, as `docs/bundle.md` writes a line of `requests.jsonl`.

    Args:
        store: an open store.
        positions: [B] int64, any order.
        history_limits: newest events, by log.

    Returns:
        One dictionary a request: `request`, `histories`, `candidates`; values are JSON-able, null where missing.
    """
    reader = _RawReader(store)
    return [reader.request(int(position), history_limits) for position in positions]


class _RawReader:
    def __init__(self, store: Store) -> None:
        self.store, self.schema = store, store.schema
        self.items = map_columns(store.folder / "items.arrow")
        self.users = map_columns(store.folder / "users.arrow")
        self.logs = {log: map_columns(store.folder / "events" / f"{log}.arrow") for log in store.schema.data.events}

    def request(self, position: int, history_limits: dict[str, int]) -> dict[str, Any]:
        row = self._row(position)
        user, time = row["user"], row["time"]
        return {
            "request": self._request(row),
            "histories": {log: self._history(log, user, time, history_limits[log]) for log in self.logs},
            "candidates": self._candidates(row),
        }

    def _row(self, position: int) -> dict[str, Any]:
        import pyarrow.parquet as pq

        firsts = [group.first for group in self.store.row_groups]
        group = self.store.row_groups[int(np.searchsorted(firsts, position, side="right")) - 1]
        part_first = next(g.first for g in self.store.row_groups if g.part == group.part)
        at, found = position - part_first, {}
        beside = (self.store.statistics_parts,) if self.schema.statistics else ()
        for parts in (self.store.parts, *beside):
            with pq.ParquetFile(parts[group.part]) as file:
                found |= parquet_rows(file, at, at + 1).to_pylist()[0]
        return found

    def _request(self, row: dict[str, Any]) -> dict[str, Any]:
        users = self.schema.data.users.features if self.schema.data.users else ()
        of_user = self.users.slice(row["user"], 1).to_pylist()[0]
        return {
            "time": row["time"],
            USER: of_user[USER],
            "surface": self.schema.surfaces[row["surface"]],
            **{feature.name: of_user[f"feature.{feature.name}"] for feature in users},
            **{feature.name: row[f"context.{feature.name}"] for feature in self.schema.data.impressions.context},
            **{feature.name: row[feature.name] for feature in self.schema.request_statistics()},
        }

    def _history(self, log: str, user: int, time: int, limit: int) -> Columns:
        events = self.store.events[log]
        bounds = (events.starts[user : user + 1], events.ends[user : user + 1])
        first, last = as_of(events.times, *bounds, at=np.array([time]), limit=limit)
        rows = self.logs[log].slice(int(first[0]), int(last[0] - first[0]))
        own = {f.name: rows[f"feature.{f.name}"].to_pylist() for f in self.schema.data.events[log].features}
        return {"time": rows["time"].to_pylist(), **self._items(rows["item"].to_numpy()), **own}

    def _candidates(self, row: dict[str, Any]) -> Columns:
        own = {f.name: row[f"candidate.{f.name}"] for f in self.schema.data.impressions.candidate}
        own |= {f.name: row[f.name] for f in self.schema.candidate_statistics()}
        return {**self._items(np.array(row["candidates"])), **own}

    def _items(self, rows: NDArray[np.integer]) -> Columns:
        taken = self.items.take(pa.array(rows.astype(np.int64)))
        features = self.schema.data.items.features if self.schema.data.items else ()
        return {ITEM: taken[ITEM].to_pylist(), **{f.name: _values(taken, f) for f in features}}


def _values(table: pa.RecordBatch, feature: Feature) -> list[Any]:
    column = table[f"feature.{feature.name}"]
    return (column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column).to_pylist()
