"""The table of predictions: what it refuses, and that a file gives back what went in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.predictions import Predictions, load_predictions, save_predictions
from eval.score import evaluate, evaluate_surfaces
from serving.errors import DataError, MismatchError


def table(num_users: int = 60, per_user: int = 8, *, seed: int = 0, **changes: Any) -> Predictions:
    generator = np.random.default_rng(seed)
    size = num_users * per_user
    user = np.repeat(np.arange(num_users), per_user)
    probabilities = generator.random(size)
    labels = (generator.random(size) < probabilities).astype(float)
    content = {
        "row_id": generator.permutation(size) + 2**62,
        "request": user * 2 + np.tile(np.arange(per_user) % 2, num_users),
        "user": user,
        "time": np.arange(size),
        "surface": user % 2,
        "probabilities": {"click": probabilities, "buy": np.where(user % 2 == 0, np.nan, probabilities / 2)},
        "labels": {"click": labels, "buy": np.where(np.arange(size) % 5 == 0, np.nan, labels)},
        "surfaces": ("home", "search"),
        "model_digest": "a" * 64,
        "data_fingerprint": "b" * 64,
    }
    return Predictions(**(content | changes))


def test_a_file_gives_back_what_went_in(tmp_path: Path) -> None:
    before = table()
    save_predictions(before, tmp_path / "p.parquet")
    after = load_predictions(tmp_path / "p.parquet", model_digest="a" * 64, data_fingerprint="b" * 64)
    for name in ("row_id", "request", "user", "time", "surface"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
        assert getattr(before, name).dtype == getattr(after, name).dtype
    for objective in ("click", "buy"):
        assert np.array_equal(before.probabilities[objective], after.probabilities[objective], equal_nan=True)
        assert np.array_equal(before.labels[objective], after.labels[objective], equal_nan=True)
    assert (after.surfaces, after.model_digest, after.data_fingerprint) == (("home", "search"), "a" * 64, "b" * 64)


def test_an_empty_table_survives(tmp_path: Path) -> None:
    save_predictions(table(num_users=0), tmp_path / "p.parquet")
    assert load_predictions(tmp_path / "p.parquet").num_rows == 0


def test_another_model_or_store_is_refused_with_both_named(tmp_path: Path) -> None:
    save_predictions(table(), tmp_path / "p.parquet")
    with pytest.raises(MismatchError, match="model_digest: expected cccc") as caught:
        load_predictions(tmp_path / "p.parquet", model_digest="c" * 64, data_fingerprint="d" * 64)
    assert len(caught.value.problems) == 2


def test_files_that_are_no_predictions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    with pytest.raises(DataError, match="no such file"):
        load_predictions(path)
    save_predictions(table(), path)
    content = path.read_bytes()
    for cut in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match="expected a table of predictions"):
            load_predictions(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(DataError, match="parquet file of something else"):
        load_predictions(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_id": np.zeros(480, dtype=int)}, "row_id: expected unique row ids; got 479 repeated ones"),
        ({"user": np.zeros(479)}, r"user: expected shape \(480,\); got \(479,\)"),
        ({"surface": np.full(480, 2)}, "surface: expected 0 to 1; got 2 to 2"),
        ({"labels": {"click": np.full(480, 2.0)}}, r"labels of every objective; got none of \['buy'\]"),
        ({"labels": {"click": np.full(480, 2.0)}}, "labels.click: expected 0, 1 or NaN; got 2.0"),
        ({"probabilities": {"click": np.full(480, -0.5)}}, "probabilities.click: expected 0 to 1 or NaN; got -0.5"),
    ],
)
def test_a_malformed_table_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        table(**changes)


def test_only_rows_with_probability_and_label_are_scored_in_order_of_row_id() -> None:
    before = table()
    scored = before.scored("buy")
    expected = sum(user % 2 == 1 and i % 5 != 0 for i, user in enumerate(before.user))
    assert scored.num_rows == expected
    assert np.all(np.diff(scored.row_id) > 0)


def test_metrics_count_what_they_rest_on() -> None:
    predictions = table()
    metrics = evaluate(predictions, "buy")
    scored = predictions.scored("buy")
    by_request: dict[int, set[float]] = {}
    for request, label in zip(scored.request, scored.labels["buy"], strict=True):
        by_request.setdefault(int(request), set()).add(float(label))
    used = sum(len(classes) == 2 for classes in by_request.values())
    assert metrics.num_rows + metrics.num_unscored == predictions.num_rows
    assert metrics.num_positives == scored.labels["buy"].sum()
    assert metrics.num_users == 30
    assert (metrics.num_groups_used, metrics.num_groups_dropped) == (used, len(by_request) - used)
    for name in ("normalized_entropy", "auc", "grouped_auc", "calibration", "log_loss"):
        interval = getattr(metrics, name)
        assert interval.low <= interval.estimate <= interval.high


def test_a_surface_is_scored_as_if_it_were_alone() -> None:
    predictions = table()
    by_surface = evaluate_surfaces(predictions, "click")
    assert list(by_surface) == ["home", "search"]
    alone = evaluate(predictions.take(predictions.surface == 1), "click")
    assert by_surface["search"] == alone
    one_surface = replace(predictions, surface=np.zeros(480))
    assert list(evaluate_surfaces(one_surface, "click")) == ["home"]
    nothing = evaluate_surfaces(one_surface, "click", surfaces=["search"])["search"]
    assert (nothing.num_rows, nothing.num_users) == (0, 0)
    assert np.isnan(nothing.auc.estimate)


def test_an_unknown_objective_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="expected one of: click, buy; got 'clck'"):
        evaluate(table(), "clck")
