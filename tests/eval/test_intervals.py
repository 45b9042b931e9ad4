"""Intervals: known standard errors, clustering, pairing, and what makes them undefined."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eval.intervals import Bootstrap, ClusteredRows, clustered_rows, difference, ratio
from eval.metrics.calibration import calibration
from eval.metrics.entropy import log_loss, normalized_entropy
from eval.metrics.ranking import auc, grouped_auc

MANY = Bootstrap(num_resamples=2000)


def sample(num_users: int = 40, per_user: int = 10, *, seed: int = 0) -> tuple[ClusteredRows, np.ndarray]:
    generator = np.random.default_rng(seed)
    users = np.repeat(np.arange(num_users), per_user)
    requests = users * 2 + np.tile(np.arange(per_user) % 2, num_users)
    probabilities = generator.random(len(users)).round(1).clip(0.05, 0.95)
    labels = generator.random(len(users)) < probabilities
    return clustered_rows(labels, probabilities, users, weights=generator.integers(1, 4, len(users))), requests


def test_a_resample_equals_the_metric_of_the_repeated_rows() -> None:
    rows, requests = sample()
    counts = np.random.default_rng(5).integers(0, 3, rows.num_clusters).astype(float)
    weights = rows.weights * counts[rows.cluster]
    one = counts[None, :]
    given = {"weights": weights}
    y, p = rows.labels, rows.probabilities
    assert rows.log_loss()(one)[0] == pytest.approx(log_loss(y, p, **given), rel=1e-12)
    assert rows.normalized_entropy()(one)[0] == pytest.approx(normalized_entropy(y, p, **given), rel=1e-12)
    assert rows.calibration()(one)[0] == pytest.approx(calibration(y, p, **given), rel=1e-12)
    assert rows.auc()(one)[0] == pytest.approx(auc(y, p, **given), rel=1e-12)
    assert rows.grouped_auc(requests)(one)[0] == pytest.approx(grouped_auc(y, p, requests, **given).value, rel=1e-12)


def test_the_standard_error_of_a_mean_over_single_rows_is_the_textbook_one() -> None:
    num_rows = 400
    labels = np.arange(num_rows) % 4 == 0
    losses = np.where(labels, -math.log(0.3), -math.log(0.7))
    rows = clustered_rows(labels, np.full(num_rows, 0.3), np.arange(num_rows))
    interval = MANY.interval(rows.log_loss(), rows.num_clusters)
    expected = losses.std() / math.sqrt(num_rows)
    assert interval.standard_error == pytest.approx(expected, rel=0.1)
    assert interval.low == pytest.approx(losses.mean() - 1.96 * expected, abs=0.2 * expected)
    assert interval.high == pytest.approx(losses.mean() + 1.96 * expected, abs=0.2 * expected)


def test_copies_of_a_users_rows_add_no_certainty() -> None:
    rows, _ = sample()
    copied = clustered_rows(rows.labels.repeat(9), rows.probabilities.repeat(9), rows.cluster.repeat(9))
    plain = clustered_rows(rows.labels, rows.probabilities, rows.cluster)
    for name in ("normalized_entropy", "auc", "calibration"):
        once = MANY.interval(getattr(plain, name)(), 40)
        many = MANY.interval(getattr(copied, name)(), 40)
        assert (many.estimate, many.low, many.high) == pytest.approx((once.estimate, once.low, once.high), rel=1e-9)


def test_the_auc_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    # Positives N(1, 1), negatives N(0, 1): AUC = Phi(1 / sqrt 2). 95 % of 200 is 190, standard deviation 3.1.
    truth = 0.5 * (1 + math.erf(0.5))
    covered = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        labels = np.arange(150) % 2
        scores = 1 / (1 + np.exp(-(generator.normal(size=150) + labels)))
        interval = Bootstrap(200, seed=seed).interval(clustered_rows(labels, scores, np.arange(150)).auc(), 150)
        covered += interval.low <= truth <= interval.high
    assert 178 <= covered <= 199


def test_a_paired_difference_is_far_surer_than_its_parts() -> None:
    rows, _ = sample(seed=2)
    nearly = clustered_rows(rows.labels, rows.probabilities * 0.99, rows.cluster, weights=rows.weights)
    left, right = rows.normalized_entropy(), nearly.normalized_entropy()
    paired = MANY.interval(difference(left, right), rows.num_clusters)
    alone = MANY.interval(left, rows.num_clusters)
    assert paired.standard_error < alone.standard_error / 5
    assert MANY.interval(difference(left, left), rows.num_clusters).standard_error == 0
    assert paired.estimate == pytest.approx(left(np.ones((1, 40)))[0] - right(np.ones((1, 40)))[0])


def test_a_ratio_is_taken_resample_by_resample() -> None:
    rows, _ = sample()
    interval = MANY.interval(ratio(rows.log_loss(), rows.log_loss()), rows.num_clusters)
    assert (interval.low, interval.estimate, interval.high) == (1.0, 1.0, 1.0)


def test_the_same_seed_gives_the_same_interval_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = sample()
    first = MANY.interval(rows.auc(), rows.num_clusters)
    monkeypatch.setattr("eval.intervals.CHUNK_NUMBERS", 100)
    assert MANY.interval(rows.auc(), rows.num_clusters) == first
    assert Bootstrap(2000, seed=1).interval(rows.auc(), rows.num_clusters) != first


def test_one_user_gives_no_interval() -> None:
    interval = MANY.interval(clustered_rows([0, 1], [0.2, 0.7], [3, 3]).auc(), 1)
    assert interval.estimate == 1.0
    assert math.isnan(interval.low)
    assert math.isnan(interval.standard_error)


def test_an_undefined_estimate_has_no_interval() -> None:
    rows = clustered_rows([0, 0], [0.2, 0.7], [3, 4])
    interval = MANY.interval(rows.normalized_entropy(), 2)
    assert math.isnan(interval.estimate)
    assert math.isnan(interval.high)
    empty = clustered_rows([], [], [])
    assert math.isnan(MANY.interval(empty.auc(), 0).estimate)


def test_undefined_resamples_are_counted_and_too_many_leave_no_interval() -> None:
    # One positive user of 100 is missing from (1 - 1/100)^100 = 37 % of the resamples.
    labels = np.arange(100) == 0
    interval = MANY.interval(clustered_rows(labels, np.full(100, 0.1), np.arange(100)).normalized_entropy(), 100)
    assert interval.num_undefined == pytest.approx(0.366 * 2000, rel=0.15)
    assert math.isnan(interval.low)
    assert not math.isnan(interval.estimate)
    # Four of them are all missing from (1 - 4/100)^100 = 1.7 %.
    labels = np.arange(100) < 4
    interval = MANY.interval(clustered_rows(labels, np.full(100, 0.1), np.arange(100)).normalized_entropy(), 100)
    assert 0 < interval.num_undefined < 0.05 * 2000
    assert interval.low < interval.estimate < interval.high


def test_a_group_that_spans_users_is_refused() -> None:
    rows = clustered_rows([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4], [1, 1, 2, 2])
    with pytest.raises(ValueError, match="group within one cluster"):
        rows.grouped_auc([5, 5, 5, 6])
