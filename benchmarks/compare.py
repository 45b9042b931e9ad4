"""Several models on the same rows: AUC, NE and calibration, and by how much one leads the others, with intervals.

Intervals are over users, whose rows hang together, of the mean over seeds; the spread of the seeds stands beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.intervals import STANDARD, Bootstrap, ClusteredRows, Statistic, clustered_rows, difference
from eval.metrics.rows import Floats
from eval.predictions import Predictions
from serving.errors import MismatchError, Problem

ALL = "all"
METRICS = ("auc", "ne", "calibration")


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds.

    Attributes:
        mean: over the seeds.
        low: lower end of its interval over users.
        high: upper end.
        seed_error: standard error of the mean from the spread of the seeds; NaN for one seed, or for a model of one.
    """

    mean: float
    low: float
    high: float
    seed_error: float


@dataclass(frozen=True, slots=True)
class Slice:
    """One objective on some rows.

    Attributes:
        num_rows: rows with a known label.
        num_positives: of them with label 1.
        num_users: users they come from.
        models: by model, then by `METRICS`.
        leads: by other model, then "auc" and "ne": the first model's minus the other's.
    """

    num_rows: int
    num_positives: int
    num_users: int
    models: Mapping[str, Mapping[str, Figure]]
    leads: Mapping[str, Mapping[str, Figure]]


def compare_models(
    models: Mapping[str, Sequence[Predictions]], objective: str, *, bootstrap: Bootstrap = STANDARD
) -> dict[str, Slice]:
    """All rows, then each surface that has some, by name.

    Args:
        models: by name, one table a seed; the first model is compared with each of the others. A model of one table
            stands beside every seed of the first.
        objective: whose labels are asked.
        bootstrap: how intervals are made.

    Raises:
        MismatchError: the tables are not of the same rows and labels.
    """
    tables = {name: [table.scored(objective) for table in seeds] for name, seeds in models.items()}
    _refuse_other_rows(tables, objective)
    first = next(iter(tables.values()))[0]
    slices = {ALL: _slice(tables, objective, bootstrap)} if first.num_rows else {}
    for place, surface in enumerate(first.surfaces):
        here = first.surface == place
        if here.any():
            part = {name: [table.take(here) for table in seeds] for name, seeds in tables.items()}
            slices[surface] = _slice(part, objective, bootstrap)
    return slices


def _slice(tables: Mapping[str, Sequence[Predictions]], objective: str, bootstrap: Bootstrap) -> Slice:
    first = next(iter(tables.values()))[0]
    rows = {
        name: [clustered_rows(t.labels[objective], t.probabilities[objective], t.user) for t in seeds]
        for name, seeds in tables.items()
    }
    statistics = {name: [_statistics(part) for part in seeds] for name, seeds in rows.items()}
    num_users = next(iter(rows.values()))[0].num_clusters
    leader, *others = statistics
    models = {
        name: {metric: _figure([seed[metric] for seed in seeds], num_users, bootstrap) for metric in METRICS}
        for name, seeds in statistics.items()
    }
    leads = {
        other: {
            metric: _figure(_leads(statistics[leader], statistics[other], metric), num_users, bootstrap)
            for metric in ("auc", "ne")
        }
        for other in others
    }
    labels = first.labels[objective]
    return Slice(len(labels), int(labels.sum()), num_users, models, leads)


def _statistics(rows: ClusteredRows) -> dict[str, Statistic]:
    statistics = {"auc": rows.auc(), "ne": rows.normalized_entropy(), "calibration": rows.calibration()}
    return {name: remembered(statistic) for name, statistic in statistics.items()}


def _leads(left: Sequence[dict[str, Statistic]], right: Sequence[dict[str, Statistic]], metric: str) -> list[Statistic]:
    """Seed by seed; a model of one table stands beside each."""
    pairs = zip(left, right if len(right) == len(left) else [right[0]] * len(left), strict=True)
    return [difference(one[metric], other[metric]) for one, other in pairs]


def _figure(seeds: Sequence[Statistic], num_users: int, bootstrap: Bootstrap) -> Figure:
    def mean(counts: Floats) -> Floats:
        return np.mean([statistic(counts) for statistic in seeds], axis=0)

    interval = bootstrap.interval(mean, num_users)
    once = np.ones((1, num_users))
    values = [float(statistic(once)[0]) for statistic in seeds]
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
    return Figure(interval.estimate, interval.low, interval.high, error)


def remembered(statistic: Statistic) -> Statistic:
    """The same statistic, computed once for equal counts: every interval resamples the same users."""
    known: dict[bytes, Floats] = {}

    def once(counts: Floats) -> Floats:
        key = hashlib.sha256(np.ascontiguousarray(counts).tobytes()).digest()
        if key not in known:
            known[key] = statistic(counts)
        return known[key]

    return once


def _refuse_other_rows(tables: Mapping[str, Sequence[Predictions]], objective: str) -> None:
    first_name, first_seeds = next(iter(tables.items()))
    first, remedy = first_seeds[0], "Score all models on the test rows of one store."
    problems = [
        Problem(f"{name}: {objective}", f"the {first.num_rows:,} rows of {first_name}", f"{table.num_rows:,}", remedy)
        for name, seeds in tables.items()
        for table in seeds
        if table.data_fingerprint != first.data_fingerprint
        or not np.array_equal(table.row_id, first.row_id)
        or not np.array_equal(table.labels[objective], first.labels[objective])
    ]
    if problems:
        raise MismatchError(problems)
