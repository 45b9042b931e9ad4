"""As-of statistics of the logged requests, out of core: the numbers that `serving.statistics.Counter` would give.

Made from a store's other files alone, so a changed `statistics` section needs nothing else made again. DuckDB gets the
store as four kinds of tables, each with only the columns that keys name, and every rule is one query: moments that
count and moments that ask, by key and time, with frames that end a microsecond before the moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foundation.data.columns import map_columns, parquet_batches, parquet_rows
from foundation.data.schema import ITEM, SURFACE, USER, Feature, Schema
from foundation.data.sql import identifier, quote, readable
from foundation.data.staging import published
from serving.statistics import HOUR_US, IMPRESSIONS, StatisticRule, Value

ROWS_AT_ONCE = 2**17


@dataclass(frozen=True, slots=True)
class _Work:
    """What the steps share: the store without its statistics, a folder for one file a rule, and DuckDB."""

    schema: Schema
    store: Path
    staged: Path
    connection: duckdb.DuckDBPyConnection

    @property
    def parts(self) -> list[Path]:
        """The parts of the requests, in order."""
        return sorted((self.store / "requests").glob("*.parquet"))

    def values(self, rule: StatisticRule) -> Path:
        """File of a rule's values, one row a candidate or a request."""
        return self.staged / f"statistic.{rule.name}.parquet"


def write_statistics(
    schema: Schema, store: Path, *, staged: Path, connection: duckdb.DuckDBPyConnection
) -> Iterator[float]:
    """Write `statistics/part-*.parquet` beside the requests, those that are not there yet.

    Args:
        schema: the project's data sections.
        store: folder with all other files of the store.
        staged: an existing folder for intermediate files, which a later run goes on from.
        connection: DuckDB, with its limits.

    Yields:
        The share that is done.
    """
    work, rules = _Work(schema, store, staged, connection), schema.statistic_rules()
    if not rules:
        return
    (store / "statistics").mkdir(exist_ok=True)
    left = [rule for rule in rules if not work.values(rule).exists()]
    with readable([store]):
        if left:
            _load(work)
        for place, rule in enumerate(left):
            yield 0.1 + 0.8 * place / len(left)
            with published(work.values(rule)) as aside:
                connection.execute(f"COPY ({_values_sql(schema, rule)}) TO {quote(str(aside))} (FORMAT parquet)")
    yield 0.9
    _write_parts(work, rules)


def _load(work: _Work) -> None:
    """Tables `requests`, `shown` and `log.NAME`: a time, the values that keys name, and labels."""
    schema, store, connection = work.schema, work.store, work.connection
    users, items = schema.data.users, schema.data.items
    keys = {name for rule in schema.statistic_rules() for name in rule.key}

    def used(features: tuple[Feature, ...]) -> list[str]:
        return [feature.name for feature in features if feature.name in keys]

    of_user, of_item = used(users.features if users else ()), used(items.features if items else ())
    context, candidate = used(schema.data.impressions.context), used(schema.data.impressions.candidate)
    _entities(connection, USER, map_columns(store / "users.arrow"), of_user)
    _entities(connection, ITEM, map_columns(store / "items.arrow"), of_item)
    surfaces = pa.table({"place": pa.array(range(len(schema.surfaces)), pa.int32()), "name": list(schema.surfaces)})
    connection.register("surfaces", surfaces)
    own = ["r.request", "r.time", 'r."user"', *_columns("r", context, prefix="context.")]
    _collect(
        connection,
        "requests",
        _requests(work.parts, context),
        f"SELECT {', '.join([*own, 's.name AS surface', *_columns('u', of_user)])} FROM stream r "
        f'JOIN surfaces s ON r.surface = s.place JOIN of_user u ON r."user" = u.place',
    )
    labels = [rule.objective for rule in schema.statistic_rules() if rule.objective is not None]
    asked = ["r.* EXCLUDE (request)", "c.row_number", "c.item", *_columns("i", of_item)]
    asked += _columns("c", candidate, prefix="candidate.")
    asked += [f"c.{identifier(f'label.{name}')}" for name in dict.fromkeys(labels)]
    _collect(
        connection,
        "shown",
        _shown(work.parts, candidate, list(dict.fromkeys(labels))),
        f"SELECT {', '.join(asked)} FROM stream c JOIN requests r ON c.request = r.request "
        "JOIN of_item i ON c.item = i.place",
    )
    for log in {rule.source for rule in schema.statistic_rules()} - {IMPRESSIONS}:
        event = used(schema.data.events[log].features)
        terms = ["e.time", 'e."user"', "e.item", *_columns("e", event, prefix="feature.")]
        terms += [*_columns("u", of_user), *_columns("i", of_item)]
        _collect(
            connection,
            f"log.{log}",
            _events(store, log, event),
            f'SELECT {", ".join(terms)} FROM stream e JOIN of_user u ON e."user" = u.place '
            "JOIN of_item i ON e.item = i.place",
        )


def _columns(table: str, names: list[str], *, prefix: str = "") -> list[str]:
    return [f"{table}.{identifier(prefix + name)} AS {identifier(name)}" for name in names]


def _collect(connection: duckdb.DuckDBPyConnection, name: str, batches: Iterator[pa.RecordBatch], select: str) -> None:
    """Make a table of what a query makes of a stream."""
    first = next(batches)

    def whole() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    connection.register("stream", pa.RecordBatchReader.from_batches(first.schema, whole()))
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {identifier(name)} AS {select}")
    connection.unregister("stream")


def _entities(connection: duckdb.DuckDBPyConnection, name: str, table: pa.RecordBatch, features: list[str]) -> None:
    """Table `of_NAME`: the place of each item or user in the store, which stands for its id, and features."""
    columns = {"place": pa.array(np.arange(table.num_rows, dtype=np.int32))}
    columns |= {feature: table[f"feature.{feature}"] for feature in features}
    connection.register("entities", pa.table(columns))
    connection.execute(f"CREATE OR REPLACE TEMP TABLE of_{name} AS SELECT * FROM entities")
    connection.unregister("entities")


def _requests(parts: list[Path], context: list[str]) -> Iterator[pa.RecordBatch]:
    """Requests with their place in the store."""
    first = 0
    for part in parts:
        names = ["time", "user", SURFACE, *(f"context.{name}" for name in context)]
        for batch in parquet_batches(part, names, rows=ROWS_AT_ONCE):
            numbers = pa.array(np.arange(first, first + batch.num_rows))
            yield pa.RecordBatch.from_arrays([numbers, *batch.columns], names=["request", *names])
            first += batch.num_rows


def _shown(parts: list[Path], candidate: list[str], objectives: list[str]) -> Iterator[pa.RecordBatch]:
    """Candidates with their place among all candidates and that of their request among all requests."""
    lists = [*(f"candidate.{name}" for name in candidate), *(f"label.{name}" for name in objectives)]
    request = row = 0
    for part in parts:
        for batch in parquet_batches(part, ["candidates", *lists], rows=ROWS_AT_ONCE // 8):
            sizes = batch["candidates"].value_lengths().to_numpy()
            requests = pa.array(np.repeat(np.arange(request, request + len(sizes)), sizes))
            numbers = pa.array(np.arange(row, row + len(requests)))
            flat = [batch[name].flatten() for name in ("candidates", *lists)]
            yield pa.RecordBatch.from_arrays([numbers, requests, *flat], names=["row_number", "request", ITEM, *lists])
            request, row = request + len(sizes), row + len(requests)


def _events(store: Path, log: str, features: list[str]) -> Iterator[pa.RecordBatch]:
    """Events with their users."""
    events = map_columns(store / "events" / f"{log}.arrow")
    ends = map_columns(store / "users.arrow")[f"{log}_end"].to_numpy()
    names = ["time", ITEM, *(f"feature.{name}" for name in features)]
    for first in range(0, max(events.num_rows, 1), ROWS_AT_ONCE):
        piece = events.slice(first, ROWS_AT_ONCE)
        users = np.searchsorted(ends, np.arange(first, first + piece.num_rows), side="right").astype(np.int32)
        columns = [piece[name] for name in names]
        plain = [c.dictionary_decode() if isinstance(c, pa.DictionaryArray) else c for c in columns]
        yield pa.RecordBatch.from_arrays([pa.array(users), *plain], names=["user", *names])


def _values_sql(schema: Schema, rule: StatisticRule) -> str:
    """SQL of a rule's values, a row a request or a candidate, in their order."""
    key = ", ".join(identifier(name) for name in rule.key)
    known = " AND ".join(f"{identifier(name)} IS NOT NULL" for name in rule.key)
    frames = {value.window_us for value in rule.values}
    windows = [
        f"{_frame(window)} AS (PARTITION BY {key} ORDER BY time RANGE BETWEEN "
        f"{'UNBOUNDED' if window is None else window} PRECEDING AND 1 PRECEDING)"
        for window in sorted(frames, key=lambda window: window or 0)
    ]
    terms = [
        f"CASE WHEN {known} THEN CAST({_term(value)} AS FLOAT) END AS {identifier(value.name)}" for value in rule.values
    ]
    names = ", ".join(identifier(value.name) for value in rule.values)
    return (
        f"SELECT {names} FROM (SELECT asked, {', '.join(terms)} FROM ({_moments(schema, rule, key, known=known)}) "
        f"WINDOW {', '.join(windows)}) WHERE asked IS NOT NULL ORDER BY asked"
    )


def _moments(schema: Schema, rule: StatisticRule, key: str, *, known: str) -> str:
    """SQL of what happens by key and time: `asked` is whose values are wanted, `seen` counts, `label` 0 or 1 counts.

    A candidate whose label is known at once is one moment that asks and counts: its own frame ends before it.
    """
    asking, number = ("requests", "request") if schema.is_request_level(rule) else ("shown", "row_number")
    label = "NULL::TINYINT" if rule.objective is None else identifier(f"label.{rule.objective}")
    nothing, late = "NULL::TINYINT", rule.delay_us > 0
    if rule.source != IMPRESSIONS:
        seen = f"SELECT {key}, time, NULL::BIGINT AS asked, 1 AS seen, {nothing} AS label"
        moments = [f"{seen} FROM {identifier(f'log.{rule.source}')} WHERE {known}"]
    else:
        itself = number if asking == "shown" else "NULL::BIGINT"
        moments = [
            f"SELECT {key}, time, {itself} AS asked, 1 AS seen, {nothing if late else label} AS label FROM shown"
        ]
        if late:
            moments.append(
                f"SELECT {key}, time + {rule.delay_us}, NULL, NULL, {label} FROM shown WHERE {label} IS NOT NULL"
            )
    if rule.source != IMPRESSIONS or asking == "requests":
        moments.append(f"SELECT {key}, time, {number}, NULL, NULL FROM {asking}")
    return " UNION ALL ".join(moments)


def _term(value: Value) -> str:
    """SQL of a value before it is rounded to float32."""
    frame = _frame(value.window_us)
    positives, labels = f"count(*) FILTER (WHERE label = 1) OVER {frame}", f"count(label) OVER {frame}"
    match value.measure:
        case "count":
            return f"count(seen) OVER {frame}"
        case "recency":
            return f"(time - max(time) FILTER (WHERE seen = 1) OVER {frame}) / {HOUR_US}::DOUBLE"
        case "positives":
            return positives
        case "rate":
            return f"({positives}) / nullif({labels}, 0)::DOUBLE"


def _frame(window_us: int | None) -> str:
    return "frame_all" if window_us is None else f"frame_{window_us}"


def _write_parts(work: _Work, rules: tuple[StatisticRule, ...]) -> None:
    """Cut the rules' values as the requests are cut: the same parts, the same row groups."""
    request = row = 0
    for part in work.parts:
        path = work.store / "statistics" / part.name
        with pq.ParquetFile(part) as requests:
            sizes = [
                requests.read_row_group(group, columns=["candidates"])["candidates"].combine_chunks().value_lengths()
                for group in range(requests.num_row_groups)
            ]
        if not path.exists():
            with published(path) as aside:
                _write_part(work, rules, aside, sizes=sizes, request=request, row=row)
        request += sum(map(len, sizes))
        row += sum(int(size.to_numpy().sum()) for size in sizes)


def _write_part(
    work: _Work, rules: tuple[StatisticRule, ...], path: Path, *, sizes: list[pa.Array], request: int, row: int
) -> None:
    num_requests, num_rows = sum(map(len, sizes)), sum(int(size.to_numpy().sum()) for size in sizes)
    offsets = pa.array(np.concatenate([[0], np.cumsum(np.concatenate([s.to_numpy() for s in sizes]))]), pa.int32())
    columns: dict[str, pa.Array] = {}
    for rule in rules:
        whole = work.schema.is_request_level(rule)
        first, number = (request, num_requests) if whole else (row, num_rows)
        with pq.ParquetFile(work.values(rule), memory_map=True) as file:
            table = parquet_rows(file, first, first + number)
        for name in table.column_names:
            flat = table[name].combine_chunks()
            columns[name] = flat if whole else pa.ListArray.from_arrays(offsets, flat)
    table = pa.table(columns).replace_schema_metadata(None)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        first = 0
        for size in sizes:
            writer.write_table(table.slice(first, len(size)), row_group_size=len(size))
            first += len(size)
