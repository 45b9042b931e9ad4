"""`gemcut validate`: everything that is wrong with the logs, in one go and before anything is written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from foundation.data.checks import duplicate_problems, request_problems, requests_sql, row_problems
from foundation.data.schema import Schema, Split, TimeUnit
from foundation.data.sources import Source, find_sources
from foundation.data.sql import connect, identifier
from foundation.data.summary import Summary, summarize, total_problems
from foundation.data.value_checks import (
    repeated_candidates,
    surface_problems,
    time_problems,
    with_value_checks,
    zone_problems,
)
from serving.errors import DataError, Problem

_KEY = {"items": "item", "users": "user"}


@dataclass(frozen=True, slots=True)
class Validation:
    """What `validate_data` found.

    Attributes:
        problems: everything that is wrong; () if the logs are sound.
        summary: counts of the logs; None where the impressions are too broken to be counted.
    """

    problems: tuple[Problem, ...]
    summary: Summary | None


def validate_data(
    schema: Schema,
    root: Path,
    split: Split,
    *,
    sample_rows: int | None = None,
    memory: str = "2GB",
    threads: int = 2,
) -> Validation:
    """Check the logs against the project file; reads only.

    Args:
        schema: the data sections of the project.
        root: folder that their paths are relative to.
        split: the training and the test period.
        sample_rows: read only the first rows of each table. What is wrong only in total is then not looked for: a
            surface without rows, an empty period, an objective of one class, a log without a past.
        memory: DuckDB's memory limit.
        threads: DuckDB's threads.
    """
    found, problems = find_sources(schema, root)
    tables = {source.name: _sampled(source, sample_rows) for source in found if source.num_rows}
    with tempfile.TemporaryDirectory() as scratch:
        connection = connect(memory=memory, threads=threads, temporary=Path(scratch))
        try:
            checked, summary = _checked(connection, tables, schema=schema, split=split)
        finally:
            connection.close()
    return Validation(tuple(dict.fromkeys((*problems, *checked))), summary)


def _sampled(source: Source, rows: int | None) -> Source:
    if rows is None or source.num_rows <= rows:
        return source
    return replace(source, limit=rows, num_rows=rows)


def _checked(
    connection: duckdb.DuckDBPyConnection, tables: dict[str, Source], *, schema: Schema, split: Split
) -> tuple[list[Problem], Summary | None]:
    """Table by table, then all together; a damaged table does not hide the faults of another."""
    problems = list(zone_problems(list(tables.values())))
    sound: dict[str, Source] = {}
    for name, source in tables.items():
        try:
            times = _time_problems(connection, source, schema)
            problems += times
            problems += row_problems(connection, with_value_checks(source, schema))
            problems += _agreement_problems(connection, source, schema)
        except DataError as error:
            problems += error.problems
        else:
            if not times and _is_whole(source, schema):
                sound[name] = source
    if "impressions" not in sound:
        return problems, None
    summary = summarize(connection, sound, schema=schema, split=split)
    if summary and not any(source.limit for source in tables.values()):
        problems += total_problems(summary, sound, schema=schema, split=split)
    return problems, summary


def _time_problems(connection: duckdb.DuckDBPyConnection, source: Source, schema: Schema) -> list[Problem]:
    if not any(column.name == "time" for column in source.columns):
        return []
    return time_problems(connection, source, _unit(source, schema))


def _unit(source: Source, schema: Schema) -> TimeUnit | None:
    if source.name == "impressions":
        return schema.data.impressions.unit
    return schema.data.events[source.name.removeprefix("events.")].unit


def _agreement_problems(connection: duckdb.DuckDBPyConnection, source: Source, schema: Schema) -> Iterator[Problem]:
    """Rows that contradict each other, and surfaces that contradict the project file."""
    names = {column.name for column in source.columns}
    if source.name in _KEY and _KEY[source.name] in names:
        yield from duplicate_problems(connection, source, _KEY[source.name])
    if source.name != "impressions":
        return
    if "surface" in names:
        yield from surface_problems(connection, source, schema.surfaces)
    if "row_id" in names:
        yield from duplicate_problems(connection, source, "row_id")
    elif not schema.data.impressions.row and {"request", "item"} <= names:
        yield from repeated_candidates(connection, source)
    if {"request", "user", "time", "surface"} <= names:
        raw = _with_raw_times(source)
        yield from request_problems(connection, raw, requests_sql(raw))


def _with_raw_times(source: Source) -> Source:
    """Times as the files have them: enough to see whether they agree, whatever unit they are in."""
    columns = (
        replace(column, expression=identifier(column.source)) if column.name == "time" else column
        for column in source.columns
    )
    return replace(source, columns=tuple(columns))


def _is_whole(source: Source, schema: Schema) -> bool:
    """True if the table has every column that counts are made of."""
    wanted = {"time"}
    if source.name == "impressions":
        wanted = {"request", "user", "time", "surface", "item", *(f"label.{name}" for name in schema.objectives)}
    elif source.name in _KEY:
        wanted = {_KEY[source.name]}
    return wanted <= {column.name for column in source.columns}
