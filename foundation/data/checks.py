"""What may not be in a user's rows, found by SQL: one scan a table, one grouping for what must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foundation.data.sources import Column, Source
from foundation.data.sql import identifier, readable
from serving.errors import Problem

if TYPE_CHECKING:
    import duckdb


def row_problems(connection: duckdb.DuckDBPyConnection, source: Source) -> list[Problem]:
    """What is wrong with the rows of one table, by one scan: each broken check with its count and an example."""
    checks = [(column, check) for column in source.columns for check in column.checks]
    terms = []
    for column, check in checks:
        terms.append(f"count(*) FILTER (WHERE {check.broken})")
        terms.append(f"CAST(min({identifier(column.source)}) FILTER (WHERE {check.broken}) AS VARCHAR)")
    with readable(source.files):
        row = connection.execute(f"SELECT {', '.join(terms)} FROM {source.table}").fetchone() or ()
    problems = []
    for (column, check), count, example in zip(checks, row[0::2], row[1::2], strict=True):
        if count:
            got = f"{example or 'null'} in {count:,} of {source.num_rows:,} rows"
            problems.append(Problem(place(source, column), check.expected, got, check.remedy))
    return problems


def duplicate_problems(connection: duckdb.DuckDBPyConnection, source: Source, name: str) -> list[Problem]:
    """Values of a column that must be unique and are not, as at most one problem."""
    column = source.column(name)
    value = column.expression
    with readable(source.files):
        row = connection.execute(
            f"SELECT count(*), CAST(min(value) AS VARCHAR) FROM (SELECT {value} AS value FROM {source.table} "
            f"WHERE {identifier(column.source)} IS NOT NULL GROUP BY 1 HAVING count(*) > 1)"
        ).fetchone() or (0, None)
    if not row[0]:
        return []
    got = f"{row[0]:,} values in more than one row, {row[1]} for instance"
    return [Problem(place(source, column), "a value once", got, "Keep one row of each.")]


def request_attributes(source: Source) -> tuple[str, ...]:
    """Columns of the impressions with one value a request."""
    return ("user", "time", "surface", *source.named("context."))


def requests_sql(source: Source) -> str:
    """SQL: one row a request with its attributes, `num_rows`, and `mixed.NAME`: true where rows of it disagree."""
    terms = ["request", "count(*) AS num_rows"]
    for name in request_attributes(source):
        column = identifier(name)
        terms.append(f"min({column}) AS {column}")
        mixed = f"coalesce(min({column}) <> max({column}), false) OR count({column}) NOT IN (0, count(*))"
        terms.append(f"({mixed}) AS {identifier('mixed.' + name)}")
    rows = source.select(["request", *request_attributes(source)])
    return f"SELECT {', '.join(terms)} FROM ({rows}) GROUP BY request"


def request_problems(connection: duckdb.DuckDBPyConnection, source: Source, requests: str) -> list[Problem]:
    """Attributes that differ inside a request; `requests` is SQL of `requests_sql` or of a table made by it."""
    names = request_attributes(source)
    terms = []
    for name in names:
        mixed = identifier("mixed." + name)
        terms.append(f"count(*) FILTER (WHERE {mixed}), CAST(min(request) FILTER (WHERE {mixed}) AS VARCHAR)")
    with readable(source.files):
        row = connection.execute(f"SELECT {', '.join(terms)} FROM ({requests})").fetchone() or ()
    problems = []
    for name, count, example in zip(names, row[0::2], row[1::2], strict=True):
        if count:
            got = f"{count:,} requests with several, {example} for instance"
            remedy = "Give each page view, auction or basket on each surface its own request id."
            problems.append(Problem(place(source, source.column(name)), "one value a request", got, remedy))
    return problems


def place(source: Source, column: Column) -> str:
    """Where a problem of a column is: its files, the column, and the field that names it."""
    files = source.files
    shown = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
    return f"{shown}: column {column.source!r} ({column.where})"
