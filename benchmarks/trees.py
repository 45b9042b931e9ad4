"""Gradient-boosted trees on the columns that the models see: fitted before the cut, tuned there, then frozen.

`python -m benchmarks.trees PROJECT` prints their AUC on the test period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import ProjectArgument, SetOption, ThreadsOption, command_line, run
from benchmarks.opened import opened, table_of
from benchmarks.rows import Rows
from eval.metrics.entropy import log_loss

Tell = Callable[[str], None]

HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000


@dataclass(frozen=True, slots=True)
class TreeGrid:
    """What is tried on the last part of the training period; the best of it is fitted again on all of it.

    Attributes:
        leaves: sizes of a tree.
        category_limits: an id column of more distinct values than this is left out; the best limit is found with the
            first size, the best size then with that limit.
        learning_rate: of every fit.
        most_trees: trees at most; early stopping finds how many.
        patience: trees without gain before it stops.
        holdout: last share of the training rows, by time.
        threads: of LightGBM.
        seed: of LightGBM.
    """

    leaves: tuple[int, ...] = (127, 63, 31, 255)
    category_limits: tuple[int, ...] = (1000, 10**9)
    learning_rate: float = 0.05
    most_trees: int = 2000
    patience: int = 50
    holdout: float = 0.15
    threads: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TreeFit:
    """One objective's model.

    Attributes:
        leaves: chosen.
        category_limit: chosen.
        num_trees: chosen by early stopping.
        holdout_log_loss: of the choice, in nats.
        probabilities: [M] float64 of the rows from the cut on.
    """

    leaves: int
    category_limit: int
    num_trees: int
    holdout_log_loss: float
    probabilities: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Rows as trees take them: [N, D] float32, of which some columns are categories; `distinct` counts their values."""

    values: NDArray[np.float32]
    names: tuple[str, ...]
    distinct: dict[int, int]

    def within(self, category_limit: int) -> tuple[list[int], list[int]]:
        """(columns used, places among them of the categories)."""
        used = [column for column in range(len(self.names)) if self.distinct.get(column, 0) <= category_limit]
        return used, [place for place, column in enumerate(used) if column in self.distinct]


def columns_of(rows: Rows, cut: int) -> Columns:
    """Numbers, hour and weekday (of UTC, where the project has none), and ids as categories numbered before the cut.

    A category that does not occur before row `cut` is missing to the trees.
    """
    values, names = [rows.numbers], list(rows.number_names)
    clock = {"hour": rows.times // HOUR_US % 24, "weekday": (rows.times // DAY_US + 3) % 7}
    for name in (name for name in clock if name not in (*rows.id_names, *rows.number_names)):
        values.append(clock[name].astype(np.float32)[:, None])
        names.append(name)
    distinct: dict[int, int] = {}
    for column, name in enumerate(rows.id_names):
        ids = rows.ids[:, column]
        known = np.unique(ids[:cut])
        place = np.searchsorted(known, ids).clip(max=len(known) - 1)
        coded = np.where(known[place] == ids, place, np.nan)
        distinct[len(names)] = len(known)
        values.append(coded.astype(np.float32)[:, None])
        names.append(name)
    return Columns(np.concatenate(values, axis=1), tuple(names), distinct)


def fit_trees(rows: Rows, objective: str, *, until_us: int, grid: TreeGrid = TreeGrid(), tell: Tell = print) -> TreeFit:
    """Tune and fit on the rows before a time whose label is known by then, and score the others.

    Args:
        rows: of both periods.
        objective: its label is predicted.
        until_us: the cut, microseconds since 1970 UTC.
        grid: what is tried.
        tell: is told how each trial went.
    """
    cut = rows.first_at(until_us)
    columns = columns_of(rows, cut)
    learned = np.flatnonzero(rows.settled(objective, until_us))
    labels = rows.labels[:, rows.place(objective)]
    middle = rows.times[learned[int((1 - grid.holdout) * len(learned))]]
    early = learned[rows.settled(objective, int(middle))[learned]]
    late = learned[rows.times[learned] >= middle]
    trials: dict[tuple[int, int], tuple[float, int]] = {}

    def attempt(leaves: int, limit: int) -> float:
        if (leaves, limit) not in trials:
            trials[leaves, limit] = _trial(columns, labels, early, late, leaves=leaves, limit=limit, grid=grid)
            loss, number = trials[leaves, limit]
            tell(f"{objective}: {leaves} leaves, categories up to {limit:,}: {number} trees, log loss {loss:.5f}")
        return trials[leaves, limit][0]

    limits = sorted(set(grid.category_limits), key=lambda limit: attempt(grid.leaves[0], limit))
    leaves = min(grid.leaves, key=lambda leaves: attempt(leaves, limits[0]))
    loss, number = trials[leaves, limits[0]]
    used, categories = columns.within(limits[0])
    booster = _train(
        columns.values[learned][:, used], labels[learned], categories, leaves=leaves, rounds=number, grid=grid
    )
    probabilities = np.asarray(booster.predict(columns.values[cut:][:, used], num_threads=grid.threads))
    return TreeFit(leaves, limits[0], number, loss, probabilities.astype(np.float64))


def _trial(
    columns: Columns,
    labels: NDArray[np.float32],
    early: NDArray[np.int64],
    late: NDArray[np.int64],
    *,
    leaves: int,
    limit: int,
    grid: TreeGrid,
) -> tuple[float, int]:
    """(log loss on the later rows, trees) of a fit on the earlier ones that stops by the later ones."""
    used, categories = columns.within(limit)
    held = columns.values[late][:, used]
    booster = _train(
        columns.values[early][:, used],
        labels[early],
        categories,
        leaves=leaves,
        rounds=grid.most_trees,
        grid=grid,
        held=(held, labels[late]),
    )
    return log_loss(labels[late], np.asarray(booster.predict(held))), max(1, booster.best_iteration)


def _train(
    values: NDArray[np.float32],
    labels: NDArray[np.float32],
    categories: list[int],
    *,
    leaves: int,
    rounds: int,
    grid: TreeGrid,
    held: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
) -> Any:
    import lightgbm

    settings = {
        "objective": "binary",
        "metric": "binary_logloss",
        "learning_rate": grid.learning_rate,
        "num_leaves": leaves,
        "num_threads": grid.threads,
        "seed": grid.seed,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(values, labels, categorical_feature=categories, params=settings)
    valid = [lightgbm.Dataset(held[0], held[1], reference=data, params=settings)] if held else []
    stop = [lightgbm.early_stopping(grid.patience, verbose=False)] if held else []
    return lightgbm.train(settings, data, num_boost_round=rounds, valid_sets=valid, callbacks=stop)


app = command_line()


@app.command(help=__doc__)
def trees(
    project: ProjectArgument,
    *,
    objective: Annotated[list[str] | None, typer.Option(help="Only this; may be repeated.")] = None,
    leaves: Annotated[list[int] | None, typer.Option(help="Of a tree, to try; may be repeated.")] = None,
    category_limit: Annotated[list[int] | None, typer.Option(help="To try; may be repeated.")] = None,
    overrides: SetOption = None,
    threads: ThreadsOption = 2,
) -> None:
    """See the module."""
    chosen, grid = opened(project, overrides or ()), TreeGrid(threads=threads)
    limits = tuple(category_limit or grid.category_limits)
    grid = replace(grid, leaves=tuple(leaves or grid.leaves), category_limits=limits)
    objectives = objective or list(chosen.rows.schema.objectives)
    fits = {name: fit_trees(chosen.rows, name, until_us=chosen.until_us, grid=grid) for name in objectives}
    print(table_of(chosen, {name: fit.probabilities for name, fit in fits.items()}))


if __name__ == "__main__":
    run(app)
