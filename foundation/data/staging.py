"""The steps of `prepare` that DuckDB does: keys to row numbers, and every table in the order that the store needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foundation.data.checks import request_problems, requests_sql
from foundation.data.columns import parquet_batches, write_columns
from foundation.data.schema import Schema
from foundation.data.sources import Column, Source
from foundation.data.sql import identifier, quote, readable
from serving.errors import DataError

if TYPE_CHECKING:
    import duckdb

ARROW = {"int": pa.int64(), "string": pa.large_string(), "number": pa.float64()}


@dataclass(frozen=True, slots=True)
class Staging:
    """What the steps share.

    Attributes:
        schema: the project's data sections.
        sources: the user's tables by name.
        partial: the folder of the unfinished run.
        connection: DuckDB, with its limits.
    """

    schema: Schema
    sources: dict[str, Source]
    partial: Path
    connection: duckdb.DuckDBPyConnection

    @property
    def staged(self) -> Path:
        """Folder of intermediate files."""
        return self.partial / "staged"

    @property
    def store(self) -> Path:
        """Folder that becomes the store."""
        return self.partial / "store"

    def table(self, name: str) -> str:
        """SQL of an intermediate file, with `file_row_number`, which is a key's row number."""
        return f"read_parquet({quote(str(self.staged / f'{name}.parquet'))})"

    def stage(self, name: str, sql: str, *, check: Callable[[str], None] | None = None) -> Path:
        """Write the result of a query, in its order, as an intermediate parquet file; nothing if it is there."""
        path = self.staged / f"{name}.parquet"
        if not path.exists():
            files = [file for source in self.sources.values() for file in source.files]
            with published(path) as aside, readable(files):
                self.connection.execute(f"COPY ({sql}) TO {quote(str(aside))} (FORMAT parquet)")
                if check is not None:
                    check(f"SELECT * FROM read_parquet({quote(str(aside))})")
        return path


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """A name to write under, which becomes `path`, whole and on disk, if the block ends well."""
    aside = path.with_name(f"{path.name}.aside")
    aside.unlink(missing_ok=True)
    yield aside
    with aside.open("rb") as written:
        os.fsync(written.fileno())
    aside.replace(path)


def stage_items(staging: Staging) -> None:
    """`items.arrow`: every item that any table names, in order of its id, with its features if there are any."""
    everywhere = [source for source in staging.sources.values() if source.name != "users"]
    _stage_keys(staging, "item", everywhere)
    path = staging.store / "items.arrow"
    if path.exists():
        return
    columns = _features(staging, "items")
    features = _stage_features(staging, "item", extra=())
    fields = [("item", ARROW[staging.schema.tables["item"].type]), *_fields(columns)]
    with published(path) as aside:
        batches = parquet_batches(features, [name for name, _ in fields])
        write_columns(aside, pa.schema(fields), batches, scratch=staging.partial / "scratch")


def stage_events(staging: Staging, log: str) -> None:
    """`events/LOG.arrow`: the log by user and time, events of one moment in source order; items as row numbers."""
    path = staging.store / "events" / f"{log}.arrow"
    if path.exists():
        return
    source = staging.sources[f"events.{log}"]
    columns = _features(staging, source.name)
    values: dict[str, pa.Array] = {}
    terms, joins = ["e.time", "CAST(i.file_row_number AS INTEGER) AS item"], []
    for place, column in enumerate(columns):
        name = identifier(column.name)
        if column.kind != "string":
            terms.append(f"e.{name}")
            continue
        distinct = f"SELECT DISTINCT {name} AS value FROM ({source.select([column.name])}) WHERE {name} IS NOT NULL"
        listed = staging.stage(f"{source.name}.{column.name}", f"{distinct} ORDER BY value")
        values[column.name] = pq.read_table(listed)["value"].combine_chunks().cast(pa.large_string())
        terms.append(f"CAST(v{place}.file_row_number AS INTEGER) AS {name}")
        joins.append(
            f"LEFT JOIN {staging.table(listed.name.removesuffix('.parquet'))} v{place} ON e.{name} = v{place}.value"
        )
    events = staging.stage(
        source.name,
        f"SELECT {', '.join(terms)} FROM ({source.select(order=True)}) e "
        f"JOIN {staging.table('item')} i ON e.item = i.item {' '.join(joins)} "
        f"ORDER BY e.user, e.time, e.file_index, e.file_row_number",
    )
    kinds = [(c.name, pa.int32() if c.name in values else ARROW[c.kind]) for c in columns]
    fields = [("time", pa.int64()), ("item", pa.int32()), *kinds]
    with published(path) as aside:
        batches = parquet_batches(events, [name for name, _ in fields])
        schema, scratch = pa.schema(fields), staging.partial / "scratch"
        write_columns(aside, schema, batches, scratch=scratch, dictionaries=values)


def stage_users(staging: Staging) -> None:
    """`users.arrow`: every user that any table names, in order of the id, with features and places in the logs."""
    everywhere = [source for source in staging.sources.values() if source.name != "items"]
    _stage_keys(staging, "user", everywhere)
    path = staging.store / "users.arrow"
    if path.exists():
        return
    logs = list(staging.schema.data.events)
    features = _stage_features(staging, "user", extra=tuple(logs))
    columns = _features(staging, "users")
    fields = [("user", ARROW[staging.schema.tables["user"].type]), *_fields(columns)]
    ranges = [(f"{log}_{end}", pa.int64()) for log in logs for end in ("start", "end")]
    names = [*(name for name, _ in fields), *(f"num.{log}" for log in logs)]
    with published(path) as aside:
        batches = _with_ranges(parquet_batches(features, names), logs)
        write_columns(aside, pa.schema([*fields, *ranges]), batches, scratch=staging.partial / "scratch")


def stage_requests(staging: Staging) -> None:
    """Intermediate `request`, one row a request by time and id, and `row`, one row a candidate in the same order."""
    source = staging.sources["impressions"]

    def check(requests: str) -> None:
        problems = request_problems(staging.connection, source, requests)
        if problems:
            raise DataError(problems)

    staging.stage(
        "request",
        f"SELECT r.* EXCLUDE (user), CAST(u.file_row_number AS INTEGER) AS user FROM ({requests_sql(source)}) r "
        f"JOIN {staging.table('user')} u ON r.user = u.user ORDER BY r.time, r.request",
        check=check,
    )
    own = ["row_id"] if staging.schema.data.impressions.row else []
    names = [*own, *source.named("candidate."), *source.named("label.")]
    terms = ["r.file_row_number AS request", "CAST(i.file_row_number AS INTEGER) AS item"]
    terms += [f"c.{identifier(name)}" for name in names]
    staging.stage(
        "row",
        f"SELECT {', '.join(terms)} FROM ({source.select(['request', 'item', *names])}) c "
        f"JOIN {staging.table('request')} r ON c.request = r.request JOIN {staging.table('item')} i ON c.item = i.item "
        f"ORDER BY r.file_row_number, i.file_row_number",
    )


def _stage_keys(staging: Staging, key: str, sources: Iterable[Source]) -> None:
    """Every distinct value of a key, sorted: a value's row number in this file is its row number in the store."""
    selects = [f"SELECT {key} FROM ({source.select([key])})" for source in sources]
    staging.stage(key, f"SELECT {key} FROM ({' UNION '.join(selects)}) ORDER BY {key}")


def _stage_features(staging: Staging, key: str, *, extra: tuple[str, ...]) -> Path:
    """The keys with the features of their table, null where it has no row; `num.LOG` counts events of `extra` logs."""
    terms, joins = [f"k.{key}"], []
    table = staging.sources.get(f"{key}s")
    if table:
        terms += [f"f.{identifier(column.name)}" for column in _features(staging, f"{key}s")]
        joins.append(f"LEFT JOIN ({table.select()}) f ON k.{key} = f.{key}")
    for place, log in enumerate(extra):
        terms.append(f"coalesce(n{place}.num, 0) AS {identifier('num.' + log)}")
        rows = staging.sources[f"events.{log}"].select([key])
        counts = f"SELECT {key}, count(*) AS num FROM ({rows}) GROUP BY {key}"
        joins.append(f"LEFT JOIN ({counts}) n{place} ON k.{key} = n{place}.{key}")
    sql = f"SELECT {', '.join(terms)} FROM {staging.table(key)} k {' '.join(joins)} ORDER BY k.{key}"
    return staging.stage(f"{key}.features", sql)


def _with_ranges(batches: Iterator[pa.RecordBatch], logs: list[str]) -> Iterator[pa.RecordBatch]:
    """Counts of events, the last columns, as the places where each user's events start and end."""
    ends = np.zeros(len(logs), dtype=np.int64)
    for batch in batches:
        columns = batch.columns[: len(batch.columns) - len(logs)]
        for place, log in enumerate(logs):
            counts = batch[f"num.{log}"].to_numpy()
            stops = ends[place] + np.cumsum(counts)
            columns += [pa.array(stops - counts), pa.array(stops)]
            ends[place] = stops[-1] if len(stops) else ends[place]
        yield pa.RecordBatch.from_arrays(columns, names=[str(place) for place in range(len(columns))])


def _features(staging: Staging, table: str) -> list[Column]:
    source = staging.sources.get(table)
    return [source.column(name) for name in source.named("feature.")] if source else []


def _fields(columns: list[Column]) -> list[tuple[str, pa.DataType]]:
    return [(column.name, ARROW[column.kind]) for column in columns]
