"""The data contract: which tables a user brings, and which of their columns mean what.

These models are the `tables`, `data`, `surfaces`, `objectives` and `split` sections of the project file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Annotated, Literal

import numpy as np
import orjson
from annotated_types import Ge
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from serving.ids import IdSpace
from serving.numbers import NumberRule
from serving.statistics import IMPRESSIONS, UNITS_US, Measure, StatisticRule, window_name

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
TimeUnit = Literal["s", "ms", "us", "ns"]

USER, ITEM, SURFACE = "user", "item", "surface"
MICROSECOND = timedelta(microseconds=1)

_SHORT = re.compile(rf"([+-]?[0-9]{{1,9}})({'|'.join(UNITS_US)})")
_LONG = TypeAdapter(timedelta)


def read_duration(value: object) -> object:
    """A duration written as `36h` or as pydantic reads it; anything else as it came, for pydantic to refuse.

    Example:
        >>> [str(read_duration(text)) for text in ("36h", "90s", "PT12H")]
        ['1 day, 12:00:00', '0:01:30', '12:00:00']
        >>> read_duration("week"), read_duration(7)
        ('week', 7)
    """
    if not isinstance(value, str):
        return value
    if short := _SHORT.fullmatch(value):
        return int(short[1]) * UNITS_US[short[2]] * MICROSECOND
    try:
        return _LONG.validate_python(value)
    except ValidationError:
        return value


def shown_duration(duration: timedelta) -> str:
    """A duration as a project file may have it.

    Example:
        >>> shown_duration(timedelta(days=7)), shown_duration(timedelta(hours=-36)), shown_duration(timedelta(0))
        ('7d', '-36h', '0s')
    """
    return window_name(duration // MICROSECOND) if duration else "0s"


Duration = Annotated[timedelta, Ge(timedelta(0)), BeforeValidator(read_duration)]

# How statistics become model inputs: the same whatever the data, so nobody has to fit scales.
STATISTIC_RULES: dict[Measure, NumberRule] = {
    "count": NumberRule(transform="log1p", shift=2.0, scale=2.0),  # none -1, 6 about 0, 400 about 2
    "recency": NumberRule(
        transform="log1p", shift=5.0, scale=2.0, missing=3.0
    ),  # hours; 6 days 0, 3 years 2.6, never 3
    "positives": NumberRule(transform="log1p", shift=2.0, scale=2.0),
    "rate": NumberRule(missing=-0.5),  # below every rate: nothing known is not "never"
}


class Section(BaseModel):
    """A part of the project file: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class IdFeature(Section):
    """A categorical column: each value is looked up in a table."""

    kind: Literal["id"] = "id"
    name: Name = Field(description="Name of the feature, unique in its group.")
    column: str | None = Field(default=None, description="Column of the source table; the feature's name if absent.")
    table: Name | None = Field(
        default=None, description="Entry of `tables` that holds its ids; the feature's name if absent."
    )

    @property
    def source(self) -> str:
        """Column of the source table."""
        return self.column or self.name

    @property
    def table_name(self) -> str:
        """Entry of `tables` that holds its ids."""
        return self.table or self.name


class NumberFeature(Section):
    """A numeric column."""

    kind: Literal["number"]
    name: Name = Field(description="Name of the feature, unique in its group.")
    column: str | None = Field(default=None, description="Column of the source table; the feature's name if absent.")
    rule: NumberRule = Field(default=NumberRule(), description="How the raw number becomes a model input.")

    @property
    def source(self) -> str:
        """Column of the source table."""
        return self.column or self.name


Feature = Annotated[IdFeature | NumberFeature, Field(discriminator="kind")]


class Impressions(Section):
    """One row a candidate shown: which request, whom, when, where, what, and what came of it."""

    files: str = Field(description="Path or glob of parquet files, relative to the project file.")
    request: str = Field(default="request_id", description="Column: rows of one page view, auction or basket share it.")
    user: str = Field(default="user_id", description="Column: the user.")
    time: str = Field(
        default="time", description="Column: when; one time a request. A timestamp, or an integer with `unit`."
    )
    unit: TimeUnit | None = Field(
        default=None, description="Unit of `time` since 1970-01-01 UTC if the column is an integer."
    )
    surface: str = Field(default="surface", description="Column: where; one surface a request.")
    item: str = Field(default="item_id", description="Column: the candidate.")
    row: str | None = Field(
        default=None,
        description="Column: a unique int64 for the row. If absent, a hash of request and item is the row id.",
    )
    context: tuple[Feature, ...] = Field(
        default=(), description="Features with one value a request (store, hour, device)."
    )
    candidate: tuple[Feature, ...] = Field(default=(), description="Features with a value a row (price shown, badge).")


class EventLog(Section):
    """One behaviour log: what users did, and when. Its newest events before a request are that request's history."""

    files: str = Field(description="Path or glob of parquet files, relative to the project file.")
    user: str = Field(default="user_id", description="Column: the user.")
    time: str = Field(default="time", description="Column: when. A timestamp, or an integer with `unit`.")
    unit: TimeUnit | None = Field(
        default=None, description="Unit of `time` since 1970-01-01 UTC if the column is an integer."
    )
    item: str = Field(default="item_id", description="Column: the item.")
    features: tuple[Feature, ...] = Field(
        default=(), description="Features of the event itself (action, surface, quantity)."
    )
    limit: int = Field(default=256, ge=1, le=16384, description="Newest events before a request that a reader yields.")


class Items(Section):
    """One row an item, with what is known of it."""

    files: str = Field(description="Path or glob of parquet files, relative to the project file.")
    item: str = Field(default="item_id", description="Column: the item.")
    features: tuple[Feature, ...] = Field(default=(), description="Features of the item.")


class Users(Section):
    """One row a user, with what is known of them."""

    files: str = Field(description="Path or glob of parquet files, relative to the project file.")
    user: str = Field(default="user_id", description="Column: the user.")
    features: tuple[Feature, ...] = Field(default=(), description="Features of the user.")


class Data(Section):
    """The tables a user brings."""

    impressions: Impressions = Field(description="What was shown, and the labels.")
    events: dict[Name, EventLog] = Field(min_length=1, description="Behaviour logs by name.")
    items: Items | None = Field(default=None, description="Features of items; every item without them is fine too.")
    users: Users | None = Field(default=None, description="Features of users; every user without them is fine too.")


class Objective(Section):
    """What came of a row: a column of 0, 1, or null where it is not known."""

    column: str | None = Field(
        default=None, description="Label column of the impressions; the objective's name if absent."
    )
    surfaces: tuple[str, ...] | None = Field(
        default=None, description="Surfaces on which the objective exists; all of them if absent."
    )
    delay: Duration = Field(
        default=timedelta(0),
        description="How long after the request the label is settled. Rows younger than this at the training cut "
        "are not learned from.",
    )
    weight: float = Field(default=1.0, ge=0, le=1000, description="Weight of the objective in the training loss.")
    given: Name | None = Field(
        default=None, description="Objective that must have come true for this one to (multi-unit given purchase)."
    )
    conditional: Literal["product", "masked"] = Field(
        default="product",
        description="With `given`. `product`: the score is of both together, the head's part of it of this one given "
        "the other. `masked`: the score is of this one given the other; rows where the other is not 1 do not count.",
    )
    negatives_kept: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the rows with label 0 that the log kept. Bundles score as if all had been kept; training "
        "and evaluation are on the rows there are.",
    )


class Statistic(Section):
    """Numbers about what happened before a request: how often by a key, how lately, and with which labels."""

    source: str = Field(description="A log of `data.events`, or `impressions`.")
    key: tuple[Name, ...] = Field(
        min_length=1,
        description="Features whose raw values must agree: id features that both the source and the impressions have, "
        "`user`, `item` and, where the source has it, `surface` among them.",
    )
    windows: tuple[Duration | Literal["all"], ...] = Field(
        default=("all",), min_length=1, description="How far back to count, one number each: a duration, or `all`."
    )
    recency: bool = Field(default=True, description="Also the hours since the newest one.")
    objective: Name | None = Field(
        default=None,
        description="Of `impressions`: also how many had label 1 of this objective, and which share of the known.",
    )


class Split(Section):
    """Where the training period ends. Always by time, never at random."""

    test_from: datetime = Field(description="Requests at or after this time are test. No time zone means UTC.")

    @field_validator("test_from", mode="before")
    @classmethod
    def _date_is_its_midnight(cls, value: object) -> object:
        try:
            return datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            return value


class Schema(Section):
    """The sections of the project file that give the data their meaning, together."""

    tables: dict[Name, IdSpace] = Field(description="Embedding tables by name; `user` and `item` are required.")
    data: Data
    surfaces: tuple[str, ...] = Field(min_length=1, description="Every surface that the impressions may name.")
    objectives: dict[Name, Objective] = Field(min_length=1, description="What the models predict.")
    statistics: dict[Name, Statistic] = Field(
        default={}, description="Counts, recencies and rates as of each request, as further number features."
    )

    def id_space(self, table: str) -> IdSpace:
        """The id space of a table; `surface` is made of the listed surfaces and needs no entry."""
        if table == SURFACE and SURFACE not in self.tables:
            return IdSpace(type="string", values=self.surfaces)
        return self.tables[table]

    def request_features(self) -> tuple[Feature, ...]:
        """Features with one value a request: the user, the surface, the user's features, the context, statistics."""
        users = self.data.users.features if self.data.users else ()
        own = (*users, *self.data.impressions.context)
        return (IdFeature(name=USER), IdFeature(name=SURFACE), *own, *self.request_statistics())

    def item_features(self) -> tuple[Feature, ...]:
        """Features of an item, wherever it occurs: the item itself and the items table's."""
        items = self.data.items.features if self.data.items else ()
        return (IdFeature(name=ITEM), *items)

    def candidate_features(self) -> tuple[Feature, ...]:
        """Features of a candidate: those of its item, those of its impression row, then statistics."""
        return (*self.item_features(), *self.data.impressions.candidate, *self.candidate_statistics())

    def event_features(self, log: str) -> tuple[Feature, ...]:
        """Features of one event of a log: those of its item, then its own."""
        return (*self.item_features(), *self.data.events[log].features)

    def statistic_rules(self) -> tuple[StatisticRule, ...]:
        """The statistics as the counter knows them, in the order of the file."""
        return tuple(
            StatisticRule(
                name=name,
                source=declared.source,
                key=declared.key,
                windows_us=tuple(None if window == "all" else window // MICROSECOND for window in declared.windows),
                recency=declared.recency,
                objective=declared.objective,
                delay_us=self.label_delay(declared.objective) // MICROSECOND,
            )
            for name, declared in self.statistics.items()
        )

    def label_delay(self, objective: str | None) -> timedelta:
        """How long after its request a label is settled; 0 without an objective."""
        return self.objectives[objective].delay if objective in self.objectives else timedelta(0)

    def masked_by(self, objective: str) -> str | None:
        """The objective that must have come true for a row to count for this one; None if every row counts."""
        declared = self.objectives[objective]
        return declared.given if declared.conditional == "masked" else None

    def settled_after(self, objective: str) -> timedelta:
        """How long after its request it is known whether a row counts for an objective, and with which label."""
        return max(self.label_delay(objective), self.label_delay(self.masked_by(objective)))

    def is_request_level(self, rule: StatisticRule) -> bool:
        """True if every candidate of a request has the same values: the key is of features of the request."""
        return set(rule.key) <= self.key_types(None).keys()

    def request_statistics(self) -> tuple[NumberFeature, ...]:
        """Values of statistics that a request has."""
        return _statistic_features(rule for rule in self.statistic_rules() if self.is_request_level(rule))

    def candidate_statistics(self) -> tuple[NumberFeature, ...]:
        """Values of statistics that each candidate has."""
        return _statistic_features(rule for rule in self.statistic_rules() if not self.is_request_level(rule))

    def key_types(self, source: str | None) -> dict[str, str]:
        """What the key of a statistic may name: id features and the type of their values, "int" or "string".

        Args:
            source: a log or "impressions"; None for what an impression's request has without its candidate.
        """
        users = (IdFeature(name=USER), *(self.data.users.features if self.data.users else ()))
        request = (*users, IdFeature(name=SURFACE), *self.data.impressions.context)
        if source is None:
            features = request
        elif source == IMPRESSIONS:
            features = (*request, *self.item_features(), *self.data.impressions.candidate)
        else:
            features = (*users, *self.event_features(source))
        known = (*self.tables, SURFACE)
        return {f.name: self.id_space(f.table_name).type for f in ids_of(features) if f.table_name in known}

    def heads(self) -> Iterator[tuple[str, str]]:
        """Every (surface, objective) pair that exists."""
        for surface in self.surfaces:
            for name, objective in self.objectives.items():
                if objective.surfaces is None or surface in objective.surfaces:
                    yield surface, name

    def head_exists(self) -> NDArray[np.bool_]:
        """[P, K] bool, surfaces by objectives: where there is a head."""
        pairs = set(self.heads())
        return np.array([[(surface, name) in pairs for name in self.objectives] for surface in self.surfaces])

    def schema_digest(self) -> str:
        """sha256 of the canonical JSON of these sections: two projects with the same digest read data alike.

        File paths do not count; the order of objectives, statistics and logs does, as it is that of a model's columns.
        """
        content = self.model_dump(mode="json", include=set(Schema.model_fields))
        data = content["data"]
        content["order"] = [list(names) for names in (content["objectives"], content["statistics"], data["events"])]
        for table in (data["impressions"], data["items"], data["users"], *data["events"].values()):
            if table:
                del table["files"]
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def ids_of(features: tuple[Feature, ...]) -> tuple[IdFeature, ...]:
    """The categorical ones, in order: the columns of an id matrix."""
    return tuple(feature for feature in features if isinstance(feature, IdFeature))


def numbers_of(features: tuple[Feature, ...]) -> tuple[NumberFeature, ...]:
    """All others, so that none is in no matrix: the numeric ones, in order, the columns of a number matrix."""
    return tuple(feature for feature in features if not isinstance(feature, IdFeature))


def _statistic_features(rules: Iterable[StatisticRule]) -> tuple[NumberFeature, ...]:
    return tuple(
        NumberFeature(kind="number", name=value.name, rule=STATISTIC_RULES[value.measure])
        for rule in rules
        for value in rule.values
    )
