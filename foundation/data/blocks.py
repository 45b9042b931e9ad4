"""Row groups and slices of logs as encoded numpy arrays: the parts that a reader puts its batches together from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby, pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from foundation.data.batch import Float32Array, History, Int64Array, RequestBatch
from foundation.data.columns import as_indices, as_numpy
from foundation.data.encode import filled, matrices
from foundation.data.history import slice_rows
from foundation.data.schema import SURFACE, Feature, Schema, ids_of
from foundation.data.store import Store, whole_file
from serving.ids import encode_strings

UNKNOWN_LABEL = -1
Number = TypeVar("Number", np.int64, np.float32)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive requests of a selection, encoded; `sizes` [B] counts candidates, the rest is as in `RequestBatch`."""

    positions: Int64Array
    times: Int64Array
    users: Int64Array
    surfaces: Int64Array
    ids: Int64Array
    numbers: Float32Array
    sizes: Int64Array
    candidate_ids: Int64Array
    candidate_numbers: Float32Array
    row_ids: Int64Array
    labels: Float32Array

    @property
    def num_requests(self) -> int:
        """B."""
        return len(self.positions)

    @staticmethod
    def joined(blocks: Sequence[Block]) -> Block:
        """At least one block, as one."""
        if len(blocks) == 1:
            return blocks[0]
        return Block(*(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(Block)))

    def split(self, num_requests: int) -> tuple[Block, Block]:
        """The first requests and the rest, both views."""
        num_rows = int(self.sizes[:num_requests].sum())
        head, tail = [], []
        for field in fields(Block):
            values = getattr(self, field.name)
            cut = num_rows if field.name in PER_ROW else num_requests
            head.append(values[:cut])
            tail.append(values[cut:])
        return Block(*head), Block(*tail)

    def batch(self, histories: dict[str, History]) -> RequestBatch:
        """The block with its histories, as a reader yields it."""
        offsets = np.zeros(self.num_requests + 1, dtype=np.int64)
        np.cumsum(self.sizes, out=offsets[1:])
        return RequestBatch(
            positions=self.positions,
            times=self.times,
            users=self.users,
            surfaces=self.surfaces,
            ids=self.ids,
            numbers=self.numbers,
            candidate_offsets=offsets,
            candidate_ids=self.candidate_ids,
            candidate_numbers=self.candidate_numbers,
            row_ids=self.row_ids,
            labels=self.labels,
            histories=histories,
        )


PER_ROW = frozenset({"candidate_ids", "candidate_numbers", "row_ids", "labels"})


class BlockReader:
    """Reads wanted requests, a row group at a time, and only the row groups that hold some."""

    def __init__(self, store: Store, schema: Schema) -> None:
        self._store, self._schema = store, schema
        shown = schema.data.impressions
        self._context, self._candidate = shown.context, shown.candidate
        context, candidate = _strings(self._context, schema), _strings(self._candidate, schema)
        self._dictionaries = [f"context.{name}" for name in context]
        self._dictionaries += [f"candidate.{name}.list.element" for name in candidate]
        self._columns = ["time", "user", "surface", "candidates", "row_id"]
        self._columns += [f"context.{feature.name}" for feature in self._context]
        self._columns += [f"candidate.{feature.name}" for feature in self._candidate]
        self._columns += [f"label.{objective}" for objective in schema.objectives]
        self._request_statistics, self._statistics = schema.request_statistics(), schema.candidate_statistics()
        self._statistic_columns = [feature.name for feature in (*self._request_statistics, *self._statistics)]
        self._surface_ids = encode_strings(list(schema.surfaces), schema.id_space(SURFACE), SURFACE)
        self._firsts = np.array([group.first for group in store.row_groups], dtype=np.int64)

    @cached_property
    def empty(self) -> Block:
        """A block of no requests, with arrays of the right widths."""
        table = pq.read_schema(self._store.parts[0]).empty_table()
        if self._statistic_columns:
            table = _beside_it(table, pq.read_schema(self._store.statistics_parts[0]).empty_table())
        return self._block(table, np.zeros(0, np.int64))

    def read(self, positions: Int64Array) -> Iterator[Block]:
        """The requests at these ascending positions, in blocks that are each of one row group."""
        groups = np.searchsorted(self._firsts, positions, side="right") - 1
        edges = np.flatnonzero(np.diff(groups, prepend=-1, append=-1))
        wanted = [(self._store.row_groups[groups[edge]], edge, end) for edge, end in pairwise(edges.tolist())]
        for part, pieces in groupby(wanted, key=lambda piece: piece[0].part):
            with self._part(part) as read:
                for group, edge, end in pieces:
                    table = read(group.group)
                    rows = positions[edge:end] - group.first
                    chosen = table if len(rows) == table.num_rows else table.take(as_indices(rows))
                    yield self._block(chosen, positions[edge:end])

    @contextmanager
    def _part(self, part: int) -> Iterator[Callable[[int], pa.Table]]:
        """A part, open, as a function that gives a row group of it with its statistics."""
        path, beside = self._store.parts[part], self._store.statistics_parts[part]
        with ExitStack() as stack:
            stack.enter_context(whole_file(path))
            file = stack.enter_context(pq.ParquetFile(path, memory_map=True, read_dictionary=self._dictionaries))
            statistics = None
            if self._statistic_columns:
                stack.enter_context(whole_file(beside))
                statistics = stack.enter_context(pq.ParquetFile(beside, memory_map=True))

            def read(group: int) -> pa.Table:
                table = file.read_row_group(group, columns=self._columns, use_threads=False)
                if statistics is None:
                    return table
                more = statistics.read_row_group(group, columns=self._statistic_columns, use_threads=False)
                return _beside_it(table, more)

            yield read

    def _block(self, table: pa.Table, positions: Int64Array) -> Block:
        raw = {name: _whole(table[name]) for name in (*self._columns, *self._statistic_columns)}
        users, surfaces = as_numpy(raw["user"]), as_numpy(raw["surface"])
        items = as_numpy(raw["candidates"].flatten())
        ids, numbers = self._request_features(raw, users, surfaces)
        candidate_ids, candidate_numbers = self._candidate_features(raw, items)
        return Block(
            positions=positions,
            times=as_numpy(raw["time"]),
            users=users.astype(np.int64),
            surfaces=surfaces.astype(np.int64),
            ids=ids,
            numbers=numbers,
            sizes=np.diff(as_numpy(raw["candidates"].offsets)).astype(np.int64),
            candidate_ids=candidate_ids,
            candidate_numbers=candidate_numbers,
            row_ids=as_numpy(raw["row_id"].flatten()),
            labels=self._labels(raw, len(items)),
        )

    def _request_features(
        self, raw: dict[str, pa.Array], users: NDArray[np.int32], surfaces: NDArray[np.int32]
    ) -> tuple[Int64Array, Float32Array]:
        context = {feature.name: raw[f"context.{feature.name}"] for feature in self._context}
        context |= {feature.name: raw[feature.name] for feature in self._request_statistics}
        features = (*self._context, *self._request_statistics)
        ids, numbers = matrices(context, features, self._schema, num_rows=len(users))
        of_user, of_surface = self._store.users.ids.take(users, axis=0), self._surface_ids[surfaces]
        return (
            np.concatenate([of_user[:, :1], of_surface[:, None], of_user[:, 1:], ids], axis=1),
            np.concatenate([self._store.users.numbers.take(users, axis=0), numbers], axis=1),
        )

    def _candidate_features(
        self, raw: dict[str, pa.Array], items: NDArray[np.int32]
    ) -> tuple[Int64Array, Float32Array]:
        own = {feature.name: raw[f"candidate.{feature.name}"].flatten() for feature in self._candidate}
        own |= {feature.name: raw[feature.name].flatten() for feature in self._statistics}
        features = (*self._candidate, *self._statistics)
        ids, numbers = matrices(own, features, self._schema, num_rows=len(items))
        return _beside(self._store.items.ids, items, ids), _beside(self._store.items.numbers, items, numbers)

    def _labels(self, raw: dict[str, pa.Array], num_rows: int) -> Float32Array:
        labels = np.empty((num_rows, len(self._schema.objectives)), dtype=np.float32)
        for place, name in enumerate(self._schema.objectives):
            labels[:, place] = filled(raw[f"label.{name}"].flatten(), UNKNOWN_LABEL)
        labels[labels == UNKNOWN_LABEL] = np.nan
        return labels


class EventReader:
    """Slices of one log, encoded."""

    def __init__(self, store: Store, schema: Schema, log: str) -> None:
        self.events = store.events[log]
        self._items, self._schema = store.items, schema
        self._features = schema.data.events[log].features

    def history(self, first: Int64Array, last: Int64Array) -> History:
        """Events first[b]:last[b] of the log for each request b."""
        offsets, rows = slice_rows(first, last)
        items, places = self.events.items[rows], as_indices(rows)
        own = {
            feature.name: column.take(places) for feature, column in zip(self._features, self.events.own, strict=True)
        }
        ids, numbers = matrices(own, self._features, self._schema, num_rows=len(rows))
        return History(
            offsets=offsets,
            ids=_beside(self._items.ids, items, ids),
            numbers=_beside(self._items.numbers, items, numbers),
            times=self.events.times[rows],
        )


def _strings(features: tuple[Feature, ...], schema: Schema) -> list[str]:
    """Names of the features whose raw values are strings; these are read as dictionaries, to hash each value once."""
    return [feature.name for feature in ids_of(features) if schema.id_space(feature.table_name).type == "string"]


def _beside_it(table: pa.Table, more: pa.Table) -> pa.Table:
    """The columns of two tables of the same rows."""
    return pa.table([*table.columns, *more.columns], names=[*table.column_names, *more.column_names])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array that starts at its buffers' start."""
    return pa.array([], column.type) if not column.num_chunks else column.combine_chunks()


def _beside(entities: NDArray[Number], rows: NDArray[np.integer], own: NDArray[Number]) -> NDArray[Number]:
    """Features of the rows' entities, then their own."""
    shared = entities.take(rows, axis=0)
    return np.concatenate([shared, own], axis=1) if own.shape[1] else shared
