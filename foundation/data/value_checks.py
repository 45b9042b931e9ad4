"""What `validate` asks of the rows of one table, beyond what `prepare` must refuse.

Ids, times and time zones that make sense; surfaces that are known; labels that agree; an item once in a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

import duckdb
import pyarrow as pa

from foundation.data.checks import place
from foundation.data.schema import Feature, IdFeature, Schema, TimeUnit
from foundation.data.sources import NANOSECONDS, Check, Column, Source
from foundation.data.sql import identifier, readable
from serving.errors import Problem, did_you_mean, listed

EXAMPLES = 3
LARGEST = 2**63 - 1
_EARLIEST_S, _LATEST_S = 946_684_800, 4_102_444_800  # 2000-01-01 and 2100-01-01 UTC
_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
_NANOSECONDS_IN_S = 1_000_000_000


def with_value_checks(source: Source, schema: Schema) -> Source:
    """The table with checks of ids and labels, without those of times and surfaces, which have better ones below."""
    values = _listed_values(schema)
    columns: list[Column] = []
    for column in source.columns:
        checks = column.checks
        if column.name in ("time", "surface"):
            checks = checks[:1]  # the one for nulls
        elif source.name == "impressions" and column.name == "item":
            remedy = "Drop these rows: a request with nothing to choose from teaches nothing."
            checks = (Check(checks[0].broken, "a candidate in every row", remedy), *checks[1:])
        if column.kind in ("int", "key") and any(pa.types.is_signed_integer(found) for found in column.types):
            checks = (*checks, _id_check(column, values.get(column.where, ())))
        elif column.kind == "label":
            checks = (*checks, *_product_checks(column, source, schema))
        columns.append(replace(column, checks=checks))
    return replace(source, columns=tuple(columns))


def _id_check(column: Column, values: Sequence[int]) -> Check:
    """No negative ids and not the largest of 64 bits: in many logs these say "unknown"; here they would be an id."""
    raw = identifier(column.source)
    broken = f"{raw} < 0" if pa.uint64() in column.types else f"({raw} < 0 OR {raw} = {LARGEST})"
    odd = [str(value) for value in values if value < 0 or value == LARGEST]
    broken = f"{broken} AND {raw} NOT IN ({', '.join(odd)})" if odd else broken
    unknown = "write null" if "." in column.name else "drop these rows"
    remedy = f"If it means that the id is not known, {unknown}; if it is a hash, store it as uint64 or declare strings."
    return Check(broken, f"ids from 0 to {LARGEST - 1}", remedy)


def _product_checks(column: Column, source: Source, schema: Schema) -> Iterator[Check]:
    """No label 1 of a product where its condition is 0: no model can score both, since P(both) <= P(condition)."""
    name = column.name.removeprefix("label.")
    objective, heads = schema.objectives[name], set(schema.heads())
    if objective.given is None or objective.conditional != "product":
        return
    expressions = {other.name: other.expression for other in source.columns}
    condition, surface = expressions.get(f"label.{objective.given}"), expressions.get("surface")
    if column.expression and condition and surface:  # empty where the column itself is wrong
        places = ", ".join(str(place) for place, known in enumerate(schema.surfaces) if (known, name) in heads)
        broken = f"({column.expression}) = 1 AND ({condition}) = 0 AND ({surface}) IN ({places})"
        expected = f"no 1 where `{objective.given}`, which it is given, is 0"
        remedy = "Correct the labels, remove `given`, or say `conditional: masked` to leave these rows out."
        yield Check(broken, expected, remedy)


def _listed_values(schema: Schema) -> dict[str, tuple[int, ...]]:
    """Integers that the project file lists, by the field that names the column: these are meant, whatever they are."""
    data = schema.data
    groups: list[tuple[str, tuple[Feature, ...]]] = [
        ("data.impressions.context", data.impressions.context),
        ("data.impressions.candidate", data.impressions.candidate),
        ("data.items.features", data.items.features if data.items else ()),
        ("data.users.features", data.users.features if data.users else ()),
        *((f"data.events.{name}.features", log.features) for name, log in data.events.items()),
    ]
    found: dict[str, tuple[int, ...]] = {}
    for path, features in groups:
        for feature in features:
            if isinstance(feature, IdFeature):
                values = schema.id_space(feature.table_name).values or ()
                found[f"{path}.{feature.name}"] = tuple(value for value in values if isinstance(value, int))
    return found


def time_problems(connection: duckdb.DuckDBPyConnection, source: Source, unit: TimeUnit | None) -> list[Problem]:
    """Times outside this century, as at most one problem, which names the unit that would fit."""
    column = source.column("time")
    value = identifier(column.source) if unit else column.expression
    start, end = _century(unit or "us")
    broken = f"({value} < {start} OR {value} >= {end})"
    with readable(source.files):
        count, low, high, shown = connection.execute(
            f"SELECT count(*), min({value}), max({value}), CAST(min({identifier(column.source)}) AS VARCHAR) "
            f"FROM {source.table} WHERE {broken}"
        ).fetchone() or (0, 0, 0, "")
    if not count:
        return []
    got = f"{shown} in {count:,} of {source.num_rows:,} rows"
    expected = "times from 2000 to 2099" + (f" with `unit: {unit}`" if unit else "")
    return [Problem(place(source, column), expected, got, _unit_remedy(unit, int(low), int(high)))]


def _century(unit: TimeUnit) -> tuple[int, int]:
    """First time that is accepted and first that is not any more, in a unit since 1970."""
    in_second = _NANOSECONDS_IN_S // NANOSECONDS[unit]
    return _EARLIEST_S * in_second, _LATEST_S * in_second


def _unit_remedy(unit: TimeUnit | None, low: int, high: int) -> str:
    fitting = [name for name in _UNITS if _century(name)[0] <= low and high < _century(name)[1]]
    if not fitting:
        return "Correct the times, or drop these rows."
    if unit:
        return f"`unit: {fitting[0]}` would fit them."
    return f"As numbers since 1970 they fit `{fitting[0]}`: whoever wrote the file took them for another unit."


def zone_problems(sources: Sequence[Source]) -> Iterator[Problem]:
    """Times without a zone beside times with one: nobody knows what lies between them."""
    aware: list[str] = []
    naive: list[tuple[Source, Column, str]] = []
    for source in sources:
        for column in source.columns:
            for file, found in zip(source.files, column.types, strict=True):
                if column.name == "time" and pa.types.is_timestamp(found):
                    if found.tz:
                        aware.append(f"{file} has {found}")
                    else:
                        naive.append((source, column, f"{found} in {file.name}"))
    for source, column, got in naive[:EXAMPLES] if aware else ():
        remedy = "Write all times with a zone, or all in UTC without one."
        yield Problem(place(source, column), f"times with a time zone, as {aware[0]}", got, remedy)


def surface_problems(connection: duckdb.DuckDBPyConnection, source: Source, surfaces: Sequence[str]) -> list[Problem]:
    """Surfaces that the project file does not list and, unless only some rows are read, listed ones without a row."""
    column = source.column("surface")
    with readable(source.files):
        rows = connection.execute(
            f"SELECT CAST({identifier(column.source)} AS VARCHAR) AS surface, count(*) FROM {source.table} "
            "GROUP BY 1 HAVING surface IS NOT NULL ORDER BY 2 DESC, 1"
        ).fetchall()
    problems: list[Problem] = []
    for surface, count in [row for row in rows if row[0] not in surfaces][:EXAMPLES]:
        remedy = did_you_mean(surface, surfaces, "Add it to `surfaces`, or drop these rows.")
        got = f"{surface!r} in {count:,} of {source.num_rows:,} rows"
        problems.append(Problem(place(source, column), f"one of `surfaces`: {listed(surfaces)}", got, remedy))
    found = {row[0] for row in rows}
    for position, surface in enumerate(surfaces):
        if surface not in found and source.limit is None:
            remedy = did_you_mean(surface, found - set(surfaces), "Remove it from `surfaces`, or add its rows.")
            problems.append(Problem(f"surfaces.{position}", f"rows of {surface!r}", "none", remedy))
    return problems


def repeated_candidates(connection: duckdb.DuckDBPyConnection, source: Source) -> list[Problem]:
    """Items that stand twice in a request, as at most one problem; for logs without row ids of their own."""
    rows = source.select(["request", "item"])
    with readable(source.files):
        found = connection.execute(
            f"SELECT request, item, count(*), count(*) OVER () FROM ({rows}) WHERE request IS NOT NULL "
            f"AND item IS NOT NULL GROUP BY request, item HAVING count(*) > 1 ORDER BY 1, 2 LIMIT {EXAMPLES}"
        ).fetchall()
    if not found:
        return []
    shown = "; ".join(f"request {request!r}, item {item!r}: {count} rows" for request, item, count, _ in found)
    remedy = "Keep one row of each, or give rows their own ids with `data.impressions.row`."
    got = f"{found[0][3]:,} repeated, {shown}"
    return [Problem(place(source, source.column("item")), "an item once in a request", got, remedy)]
