"""As-of statistics: how often and how lately something happened before a moment. The rules, and their counter.

A rule counts what a source holds by a key, strictly before a request. `Counter` is the definition: fed with events as
they happen it gives a server the very numbers that a model was trained on; `gemcut prepare` computes the same ones for
logged requests. `docs/statistics.md` says it in words.

For a request at t, with windows in microseconds:

    count      = number of events of the key with t - window <= time < t
    recency    = hours from the newest event of the key with time < t; missing if there is none
    positives  = number of labels of 1 of the key's impressions with t - window <= time + delay < t
    rate       = positives / labels of 0 or 1 in the same window; missing if there are none

Everything is missing where a part of the key is. A value is a float64 result rounded once to float32.

Source: ours; the boundary is that of histories: what happens at the very time of a request is not its past.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

IMPRESSIONS = "impressions"
HOUR_US = 3_600_000_000
UNITS_US = {"d": 86_400_000_000, "h": HOUR_US, "m": 60_000_000, "s": 1_000_000, "us": 1}

Measure = Literal["count", "recency", "positives", "rate"]
Row = Mapping[str, Any]
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One number that a rule gives: its name, what it measures, and how far back (None: all)."""

    name: str
    measure: Measure
    window_us: int | None = None


@dataclass(frozen=True, slots=True)
class StatisticRule:
    """What to count.

    Attributes:
        name: what the names of its values begin with.
        source: a log of events, or "impressions".
        key: names of the features whose values an event and a candidate must share.
        windows_us: how far back each count goes, microseconds above 0; None for everything.
        recency: also the time since the newest event.
        objective: of impressions: also the labels of 1, and their share of the known ones.
        delay_us: how long after its impression a label is known.
    """

    name: str
    source: str
    key: tuple[str, ...]
    windows_us: tuple[int | None, ...] = (None,)
    recency: bool = True
    objective: str | None = None
    delay_us: int = 0

    @property
    def values(self) -> tuple[Value, ...]:
        """Counts by window, recency, positives by window, rates by window.

        Example:
            >>> rule = StatisticRule("shown", "impressions", ("item",), (UNITS_US["d"] * 7, None), False, "click")
            >>> [value.name for value in rule.values][:3]
            ['shown_count_7d', 'shown_count_all', 'shown_click_7d']
        """
        windows = [(window, window_name(window)) for window in self.windows_us]
        values = [Value(f"{self.name}_count_{said}", "count", window) for window, said in windows]
        values += [Value(f"{self.name}_recency", "recency")] if self.recency else []
        if self.objective is not None:
            start = f"{self.name}_{self.objective}"
            values += [Value(f"{start}_{said}", "positives", window) for window, said in windows]
            values += [Value(f"{start}_rate_{said}", "rate", window) for window, said in windows]
        return tuple(values)


def window_name(window_us: int | None) -> str:
    """A window in the largest unit that divides it.

    Example:
        >>> [window_name(window) for window in (None, 7 * UNITS_US["d"], 36 * HOUR_US, 90 * UNITS_US["s"])]
        ['all', '7d', '36h', '90s']
    """
    if window_us is None:
        return "all"
    unit = next(unit for unit, size in UNITS_US.items() if window_us % size == 0)
    return f"{window_us // UNITS_US[unit]}{unit}"


@dataclass(slots=True)
class _Moments:
    """Times of one key, sorted; those that no window reaches any more are only counted."""

    times: list[int] = field(default_factory=list)
    num_forgotten: int = 0
    newest_forgotten: int | None = None

    def count(self, now: int, window: int | None) -> int:
        last = bisect_left(self.times, now)
        if window is None:
            return self.num_forgotten + last
        return last - bisect_left(self.times, now - window, hi=last)

    def newest(self, now: int) -> int | None:
        last = bisect_left(self.times, now)
        return self.times[last - 1] if last else self.newest_forgotten

    def forget(self, before: int) -> None:
        gone = bisect_left(self.times, before)
        if gone:
            self.num_forgotten += gone
            self.newest_forgotten = self.times[gone - 1]
            del self.times[:gone]


@dataclass(slots=True)
class _Counts:
    """What one key has seen: events, and labels of 0 and of 1."""

    events: _Moments = field(default_factory=_Moments)
    labels: tuple[_Moments, _Moments] = field(default_factory=lambda: (_Moments(), _Moments()))


class Counter:
    """Counts for a set of rules, in plain memory.

    Events and labels may come in any order and before they are past; `values` looks only at what lies before its
    moment. `forget` bounds the memory: what no window reaches is kept as one number a key.

    Example:
        >>> counter = Counter([StatisticRule("seen", "views", ("user", "item"))])
        >>> counter.add("views", {"time": 0, "user": 1, "item": 5, "action": "view"})
        >>> counter.values({"user": 1, "item": 5}, now=HOUR_US)
        {'seen_count_all': 1.0, 'seen_recency': 1.0}
        >>> counter.values({"user": 1, "item": 5}, now=0)
        {'seen_count_all': 0.0, 'seen_recency': None}
    """

    def __init__(self, rules: Iterable[StatisticRule]) -> None:
        self.rules = tuple(rules)
        self._counts: list[defaultdict[Key, _Counts]] = [defaultdict(_Counts) for _ in self.rules]

    def add(self, source: str, row: Row) -> None:
        """Count an event or an impression: `time` in microseconds, and its features by name, None where missing."""
        for rule, counts in zip(self.rules, self._counts, strict=True):
            key = _key(rule, row) if rule.source == source else None
            if key is not None:
                insort(counts[key].events.times, int(row["time"]))

    def add_label(self, objective: str, row: Row, label: int) -> None:
        """Count a label of 0 or 1 of an impression; `row` is the impression, whose `time` is that of its request."""
        for rule, counts in zip(self.rules, self._counts, strict=True):
            key = _key(rule, row) if rule.objective == objective else None
            if key is not None:
                insort(counts[key].labels[label].times, int(row["time"]) + rule.delay_us)

    def values(self, row: Row, now: int) -> dict[str, float | None]:
        """Values of every rule for one candidate.

        Args:
            row: features of the request and the candidate by name, None where missing.
            now: time of the request, microseconds since 1970 UTC.

        Returns:
            By name, in the rules' order; None where missing.
        """
        found: dict[str, float | None] = {}
        for rule, counts in zip(self.rules, self._counts, strict=True):
            key = _key(rule, row)
            seen = None if key is None else counts.get(key) or _Counts()
            for value in rule.values:
                measured = None if seen is None else _measured(seen, value, now)
                found[value.name] = None if measured is None else float(np.float32(measured))
        return found

    def forget(self, before: int) -> None:
        """Drop what can no longer matter, if no request before this moment is asked for any more."""
        for rule, counts in zip(self.rules, self._counts, strict=True):
            longest = max((window for window in rule.windows_us if window is not None), default=0)
            lasting = None in rule.windows_us or rule.recency
            for key, seen in list(counts.items()):
                moments = (seen.events, *seen.labels)
                for kind in moments:
                    kind.forget(before - longest)
                if not lasting and not any(kind.times for kind in moments):
                    del counts[key]


def _key(rule: StatisticRule, row: Row) -> Key | None:
    parts = tuple(row[name] for name in rule.key)
    if any(part is None for part in parts):
        return None
    return tuple(int(part) % 2**64 if isinstance(part, int | np.integer) else part for part in parts)


def _measured(seen: _Counts, value: Value, now: int) -> float | None:
    if value.measure == "count":
        return seen.events.count(now, value.window_us)
    if value.measure == "recency":
        newest = seen.events.newest(now)
        return None if newest is None else (now - newest) / HOUR_US
    negatives, positives = (moments.count(now, value.window_us) for moments in seen.labels)
    if value.measure == "positives":
        return positives
    return positives / (negatives + positives) if negatives + positives else None
