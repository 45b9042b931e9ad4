"""What the logs hold, in counts: for the printout of `validate`, and for what is wrong only in total."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb

from foundation.data.checks import place
from foundation.data.schema import MICROSECOND, Schema, Split, shown_duration
from foundation.data.sources import Source
from foundation.data.sql import identifier, readable
from serving.errors import Problem

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Head:
    """One (surface, objective) pair that exists, in rows.

    Attributes:
        surface: its surface.
        objective: its objective.
        known: rows with a label that counts: of a masked objective only where its condition is met, as in training.
        positives: those of them with label 1.
        training_known: rows with a label that counts and is settled before the test period.
        training_positives: those of them with label 1.
    """

    surface: str
    objective: str
    known: int
    positives: int
    training_known: int
    training_positives: int


@dataclass(frozen=True, slots=True)
class Log:
    """One behaviour log: its events, and how many of them are no history of any request."""

    name: str
    num_events: int
    after_last_request: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of the logs.

    Attributes:
        num_rows, num_requests, num_users, num_items: of the impressions.
        training_requests, test_requests: requests before the split, and from it on.
        first, last: times of the first and last request, UTC.
        rows: impressions by surface.
        heads: one for each (surface, objective) pair that exists.
        logs: one for each behaviour log that could be read.
        unknown_items: share of impressions whose item is not in the items table; None unless that table is read whole.
        unknown_users: share of impressions whose user is not in the users table; None unless that table is read whole.
    """

    num_rows: int
    num_requests: int
    num_users: int
    num_items: int
    training_requests: int
    test_requests: int
    first: datetime
    last: datetime
    rows: dict[str, int]
    heads: tuple[Head, ...]
    logs: tuple[Log, ...]
    unknown_items: float | None
    unknown_users: float | None


def summarize(
    connection: duckdb.DuckDBPyConnection, sources: Mapping[str, Source], *, schema: Schema, split: Split
) -> Summary | None:
    """Count everything, or None where no request has a time.

    Args:
        connection: DuckDB.
        sources: tables by name: the impressions with all their columns, others as far as they are sound.
        schema: the data sections of the project.
        split: the training and the test period.
    """
    shown = sources["impressions"]
    cut = microseconds(split.test_from)
    with readable(shown.files):
        counts = (
            connection.execute(
                "SELECT count(*), count(DISTINCT request), count(DISTINCT request) FILTER (WHERE time < ?), "
                "count(DISTINCT request) FILTER (WHERE time >= ?), count(DISTINCT user), count(DISTINCT item), "
                f"min(time), max(time) FROM ({shown.select(['request', 'user', 'item', 'time'])})",
                [cut, cut],
            ).fetchone()
            or (0,) * 8
        )
    last = counts[7]
    if last is None:
        return None
    names = [name for name in sources if name.startswith("events.")]
    return Summary(
        num_rows=counts[0],
        num_requests=counts[1],
        training_requests=counts[2],
        test_requests=counts[3],
        num_users=counts[4],
        num_items=counts[5],
        first=_EPOCH + counts[6] * MICROSECOND,
        last=_EPOCH + last * MICROSECOND,
        rows=_rows_by_surface(connection, shown, schema),
        heads=_heads(connection, shown, schema=schema, cut=cut),
        logs=tuple(_log(connection, sources[name], last) for name in names),
        unknown_items=_unknown_share(connection, shown, sources.get("items"), key="item"),
        unknown_users=_unknown_share(connection, shown, sources.get("users"), key="user"),
    )


def total_problems(
    summary: Summary, sources: Mapping[str, Source], *, schema: Schema, split: Split
) -> Iterator[Problem]:
    """What is wrong only in total: an empty period, an objective of one class, a log without a past."""
    span = f"{summary.first:%Y-%m-%d %H:%M:%S} to {summary.last:%Y-%m-%d %H:%M:%S} UTC"
    for period, count in (("training", summary.training_requests), ("test", summary.test_requests)):
        if not count:
            got = f"{split.test_from.isoformat()}, which leaves no request for the {period} period"
            yield Problem("split.test_from", f"a time within the requests, {span}", got, "Move the split.")
    for name, objective in schema.objectives.items() if summary.training_requests else ():
        heads = [head for head in summary.heads if head.objective == name]
        known = sum(head.training_known for head in heads)
        positives = sum(head.training_positives for head in heads)
        if not 0 < positives < known:
            condition, delay = schema.masked_by(name), schema.settled_after(name)
            settled = f" (settled after {shown_duration(delay)})" if delay else ""
            got = f"{positives:,} positives and {known - positives:,} negatives before the split{settled}"
            where = place(sources["impressions"], sources["impressions"].column(f"label.{name}"))
            met = f" where `{condition}` is 1" if condition else ""
            given = ", `given`" if objective.given else ""
            remedy = f"Check the column, `delay`{given} and `surfaces` of the objective, or move the split."
            yield Problem(where, f"both 0 and 1 among the training rows{met}", got, remedy)
    for log in summary.logs:
        if log.after_last_request == log.num_events:
            source = sources[f"events.{log.name}"]
            got = f"none: all {log.num_events:,} lie at or after it, so every history would be empty"
            remedy = "Check the time, its unit and its time zone here and in the impressions."
            expected = f"events before the last request, {summary.last:%Y-%m-%d %H:%M:%S} UTC"
            yield Problem(place(source, source.column("time")), expected, got, remedy)


def microseconds(time: datetime) -> int:
    """Microseconds since 1970 UTC; no time zone means UTC.

    Example:
        >>> microseconds(datetime(1970, 1, 2))
        86400000000
    """
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // MICROSECOND


def _rows_by_surface(connection: duckdb.DuckDBPyConnection, shown: Source, schema: Schema) -> dict[str, int]:
    with readable(shown.files):
        counted = dict(
            connection.execute(f"SELECT surface, count(*) FROM ({shown.select(['surface'])}) GROUP BY 1").fetchall()
        )
    return {surface: counted.get(position, 0) for position, surface in enumerate(schema.surfaces)}


def _heads(connection: duckdb.DuckDBPyConnection, shown: Source, *, schema: Schema, cut: int) -> tuple[Head, ...]:
    terms: list[str] = []
    for name in schema.objectives:
        label, condition = identifier(f"label.{name}"), schema.masked_by(name)
        if condition:
            label = f"CASE WHEN {identifier(f'label.{condition}')} = 1 THEN {label} END"
        settled = f"time + {schema.settled_after(name) // MICROSECOND} <= {cut} AND time < {cut}"
        terms += [f"count({label})", f"count(*) FILTER (WHERE {label} = 1)"]
        terms += [f"count({label}) FILTER (WHERE {settled})", f"count(*) FILTER (WHERE {label} = 1 AND {settled})"]
    rows = shown.select(["surface", "time", *shown.named("label.")])
    with readable(shown.files):
        counted = connection.execute(f"SELECT surface, {', '.join(terms)} FROM ({rows}) GROUP BY 1").fetchall()
    by_surface = {row[0]: row[1:] for row in counted}
    places = {name: place for place, name in enumerate(schema.objectives)}
    heads: list[Head] = []
    for surface, objective in schema.heads():
        counts = by_surface.get(schema.surfaces.index(surface), (0,) * len(terms))
        heads.append(Head(surface, objective, *counts[4 * places[objective] : 4 * places[objective] + 4]))
    return tuple(heads)


def _log(connection: duckdb.DuckDBPyConnection, source: Source, last: int) -> Log:
    with readable(source.files):
        after = connection.execute(
            f"SELECT count(*) FROM ({source.select(['time'])}) WHERE time >= ?", [last]
        ).fetchone() or (0,)
    return Log(source.name.removeprefix("events."), source.num_rows, after[0])


def _unknown_share(
    connection: duckdb.DuckDBPyConnection, shown: Source, known: Source | None, *, key: str
) -> float | None:
    if known is None or known.limit:
        return None
    with readable((*shown.files, *known.files)):
        missing = connection.execute(
            f"SELECT count(*) FROM ({shown.select([key])}) ANTI JOIN ({known.select([key])}) USING ({key})"
        ).fetchone() or (0,)
    return missing[0] / shown.num_rows
