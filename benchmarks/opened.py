"""A project with its rows in memory, the predictions of finished stages, and what scores say of the test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Rows, read_rows
from eval.metrics.calibration import calibration
from eval.metrics.entropy import normalized_entropy
from eval.metrics.ranking import auc
from eval.predictions import Predictions, load_predictions
from foundation.data.store import Store, moment_of
from gemcut.commands.train import end_of_pass
from gemcut.project import LoadedProject, load_project
from gemcut.workspace import Workspace
from serving.errors import Problem, UserError


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A project whose store is made.

    Attributes:
        loaded: the project file.
        store: its request store.
        rows: of the requests before `end_us`.
        until_us: the training cut, microseconds since 1970 UTC.
        cut: the first test row.
        end_us: where the test period ends, microseconds since 1970 UTC.
    """

    loaded: LoadedProject
    store: Store
    rows: Rows
    until_us: int
    cut: int
    end_us: int


def opened(path: Path, overrides: Sequence[str] = (), *, until: str = "end") -> Opened:
    """Open a project's store, which `gemcut prepare` has made, and read the rows before a time, or all to the end.

    Raises:
        UserError: the project file is wrong, there is no store of it, or nothing to test on.
    """
    loaded = load_project(path, overrides)
    space = Workspace(loaded)
    store = Store.open(space.store, loaded.project)
    end = end_of_pass(space, until)
    if end <= space.until_us:
        where, cut = "command line: --until", moment_of(space.until_us)
        remedy = "Go on to a later time, or move `split.test_from`."
        raise UserError(Problem(where, f"a time after `split.test_from`, {cut}", moment_of(end), remedy))
    rows = read_rows(store, loaded.project, store.select(end=end))
    return Opened(loaded, store, rows, space.until_us, rows.first_at(space.until_us), end)


def kept(path: Path, model_digest: str, data_fingerprint: str) -> Predictions | None:
    """The predictions of a finished stage; None where there are none, or those of other settings or rows."""
    try:
        return load_predictions(path, model_digest=model_digest, data_fingerprint=data_fingerprint)
    except UserError:
        return None


def table_of(project: Opened, probabilities: Mapping[str, NDArray[np.floating]]) -> str:
    """A line an objective: AUC, NE and calibration on the test rows whose label is known."""
    rows, lines = project.rows, [f"{'objective':<16}{'rows':>10}{'AUC':>9}{'NE':>9}{'calibration':>13}"]
    for name, chances in probabilities.items():
        labels = rows.labels[project.cut :, rows.place(name)]
        known = np.isfinite(labels) & np.isfinite(chances)
        y, p = labels[known], chances[known]
        lines.append(
            f"{name:<16}{len(y):>10,}{auc(y, p):>9.4f}{normalized_entropy(y, p):>9.4f}{calibration(y, p):>13.3f}"
        )
    return "\n".join(lines)
