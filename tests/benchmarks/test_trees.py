"""Trees are fitted on what is known at the cut alone, tuned on its last part, and see the columns that models see."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.opened import opened
from benchmarks.trees import TreeGrid, columns_of, fit_trees

GRID = TreeGrid(leaves=(4, 8), category_limits=(10, 10**9), most_trees=30, patience=5, threads=1)


@pytest.fixture(scope="module")
def project(tiny_teacher):
    return opened(tiny_teacher.path)


@pytest.fixture(scope="module")
def fit(project):
    return fit_trees(project.rows, "click", until_us=project.until_us, grid=GRID, tell=lambda words: None)


def test_columns_are_numbers_clock_and_categories_known_before_the_cut(project):
    rows = project.rows
    columns = columns_of(rows, project.cut)
    assert columns.names == (*rows.number_names, "weekday", *rows.id_names)  # the project has its own hour
    assert np.array_equal(columns.values[:, : rows.numbers.shape[1]], rows.numbers)
    for column in columns.distinct:
        ids = rows.ids[:, rows.id_names.index(columns.names[column])]
        values = columns.values[:, column]
        seen = np.isin(ids, ids[: project.cut])
        assert np.array_equal(np.isnan(values), ~seen)
        pairs = set(zip(ids[seen].tolist(), values[seen].tolist(), strict=True))
        assert len(pairs) == columns.distinct[column] == len(np.unique(ids[: project.cut]))


def test_the_weekday_counts_from_monday(project):
    from datetime import UTC, datetime

    columns = columns_of(project.rows, project.cut)
    days = columns.values[:, columns.names.index("weekday")]
    expected = [datetime.fromtimestamp(time / 1e6, UTC).weekday() for time in project.rows.times.tolist()]
    assert days.tolist() == expected


def test_a_category_column_beyond_the_limit_is_left_out(project):
    columns = columns_of(project.rows, project.cut)
    used, categories = columns.within(10)
    names = [columns.names[column] for column in used]
    assert {"user", "item"}.isdisjoint(names)
    assert {columns.names[used[place]] for place in categories} == {"surface", "segment", "device"}
    assert set(project.rows.number_names) < set(names)


def test_labels_from_the_cut_on_change_nothing(project, fit):
    rows = project.rows
    labels = rows.labels.copy()
    labels[project.cut :] = 1 - labels[project.cut :]
    other = fit_trees(
        replace(rows, labels=labels), "click", until_us=project.until_us, grid=GRID, tell=lambda words: None
    )
    assert np.array_equal(fit.probabilities, other.probabilities)
    assert len(fit.probabilities) == rows.num_rows - project.cut


def test_the_choice_is_the_best_of_what_was_tried(project):
    losses = {}

    def listen(words):
        leaves, limit, loss = words.split()[1], words.split()[6], words.split()[-1]
        losses[int(leaves), int(limit.rstrip(":").replace(",", ""))] = float(loss)

    fit = fit_trees(project.rows, "click", until_us=project.until_us, grid=GRID, tell=listen)
    assert set(losses) == {(4, 10), (4, 10**9), (8, fit.category_limit)}
    assert round(fit.holdout_log_loss, 5) == min(losses.values()) == losses[fit.leaves, fit.category_limit]
