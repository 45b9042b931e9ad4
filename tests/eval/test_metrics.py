"""Metrics against formulas, slow references and scikit-learn; their limits and invariances."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics.calibration import CalibrationBin, calibration, calibration_curve
from eval.metrics.entropy import log_loss, normalized_entropy
from eval.metrics.ranking import auc, grouped_auc

RELATIVE = 1e-12
"""float64 sums of a few hundred terms in another order."""

Metric = Callable[..., float]
METRICS: dict[str, Metric] = {"log_loss": log_loss, "ne": normalized_entropy, "calibration": calibration, "auc": auc}

rows = st.integers(1, 40).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 1), min_size=size, max_size=size),
        st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]), min_size=size, max_size=size),
        st.lists(st.integers(0, 3), min_size=size, max_size=size),
        st.lists(st.integers(0, 4), min_size=size, max_size=size),
    )
)


def slow_auc(labels: list[int], scores: list[float], weights: list[int]) -> float:
    wins = pairs = 0.0
    for y, s, w in zip(labels, scores, weights, strict=True):
        for other_y, other_s, other_w in zip(labels, scores, weights, strict=True):
            if y == 1 and other_y == 0:
                pairs += w * other_w
                wins += w * other_w * (1.0 if s > other_s else 0.5 if s == other_s else 0.0)
    return wins / pairs if pairs else math.nan


def test_log_loss_is_the_mean_surprise() -> None:
    expected = (-math.log(0.9) - math.log(1 - 0.4) - math.log(0.2)) / 3
    assert log_loss([1, 0, 1], [0.9, 0.4, 0.2]) == pytest.approx(expected, rel=RELATIVE)
    weighted = (-2 * math.log(0.9) - 0.5 * math.log(1 - 0.4)) / 2.5
    assert log_loss([1, 0, 1], [0.9, 0.4, 0.2], weights=[2, 0.5, 0]) == pytest.approx(weighted, rel=RELATIVE)


def test_normalized_entropy_is_log_loss_over_that_of_the_mean_label() -> None:
    labels, probabilities = [1, 0, 0, 0], [0.7, 0.2, 0.1, 0.3]
    loss = -math.log(0.7) - math.log(0.8) - math.log(0.9) - math.log(0.7)
    reference = -math.log(0.25) - 3 * math.log(0.75)
    assert normalized_entropy(labels, probabilities) == pytest.approx(loss / reference, rel=RELATIVE)


@pytest.mark.parametrize("rate", [0.5, 0.01, 0.999])
def test_the_constant_mean_label_has_a_normalized_entropy_of_one(rate: float) -> None:
    labels = np.arange(1000) < rate * 1000
    assert normalized_entropy(labels, np.full(1000, labels.mean())) == pytest.approx(1.0, rel=RELATIVE)


def test_calibration_is_predicted_over_actual() -> None:
    assert calibration([1, 0, 1, 0], [0.9, 0.2, 0.6, 0.1]) == pytest.approx(1.8 / 2, rel=RELATIVE)
    assert calibration([1, 0, 1, 0], [0.9, 0.2, 0.6, 0.1], weights=[1, 10, 1, 0]) == pytest.approx(
        3.5 / 2, rel=RELATIVE
    )


def test_calibration_curve_splits_by_probability_and_keeps_ties_together() -> None:
    curve = calibration_curve([0, 1, 0, 0, 1, 1], [0.1, 0.8, 0.1, 0.1, 0.6, 0.9], num_bins=3)
    assert [(bin_.num_rows, bin_.actual) for bin_ in curve] == [(4, 0.25), (2, 1.0)]
    assert [bin_.predicted for bin_ in curve] == pytest.approx([0.9 / 4, 1.7 / 2])
    assert calibration_curve([0, 1], [0.3, 0.3], num_bins=5) == (CalibrationBin(2, 0.3, 0.5),)
    assert calibration_curve([], []) == ()


@given(rows)
def test_auc_counts_pairs_with_ties_as_a_half(case: tuple[list[int], list[float], list[int], list[int]]) -> None:
    labels, scores, weights, _ = case
    assert auc(labels, scores, weights=weights) == pytest.approx(
        slow_auc(labels, scores, weights), abs=1e-12, nan_ok=True
    )


@given(rows)
def test_grouped_auc_weights_each_group_by_its_candidates(
    case: tuple[list[int], list[float], list[int], list[int]],
) -> None:
    labels, scores, weights, groups = case
    total = weight = used = 0.0
    for group in set(groups):
        members = [i for i, other in enumerate(groups) if other == group]
        value = slow_auc([labels[i] for i in members], [scores[i] for i in members], [weights[i] for i in members])
        if not math.isnan(value):
            size = sum(weights[i] for i in members)
            total, weight, used = total + size * value, weight + size, used + 1
    result = grouped_auc(labels, scores, groups, weights=weights)
    assert result.value == pytest.approx(total / weight if weight else math.nan, abs=1e-12, nan_ok=True)
    assert (result.num_groups, result.num_used) == (len(set(groups)), used)
    assert result.num_dropped == result.num_groups - result.num_used


def test_metrics_agree_with_scikit_learn() -> None:
    generator = np.random.default_rng(3)
    probabilities = generator.random(2000).round(2).clip(0.01, 0.99)
    labels = (generator.random(2000) < probabilities).astype(int)
    weights = generator.random(2000)
    for given_weights in (None, weights):
        options = {"sample_weight": given_weights}
        assert log_loss(labels, probabilities, weights=given_weights) == pytest.approx(
            sklearn.metrics.log_loss(labels, probabilities, **options), rel=RELATIVE
        )
        assert auc(labels, probabilities, weights=given_weights) == pytest.approx(
            sklearn.metrics.roc_auc_score(labels, probabilities, **options), rel=1e-10
        )


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_no_rows_and_no_weight_are_undefined(metric: Metric) -> None:
    assert math.isnan(metric([], []))
    assert math.isnan(metric([0, 1], [0.5, 0.5], weights=[0, 0]))


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_is_undefined_where_the_formula_divides_by_the_other(label: int) -> None:
    assert math.isnan(normalized_entropy([label] * 3, [0.2, 0.5, 0.9]))
    assert math.isnan(auc([label] * 3, [0.2, 0.5, 0.9]))
    assert math.isnan(grouped_auc([label] * 3, [0.2, 0.5, 0.9], [1, 1, 2]).value)
    assert grouped_auc([label] * 3, [0.2, 0.5, 0.9], [1, 1, 2]).num_dropped == 2
    assert log_loss([label] * 3, [0.5] * 3) == pytest.approx(math.log(2), rel=RELATIVE)
    assert math.isnan(calibration([0, 0], [0.1, 0.1]))


def test_certain_and_wrong_costs_a_finite_amount() -> None:
    assert log_loss([1], [0.0]) == pytest.approx(-math.log(1e-12), rel=RELATIVE)
    assert log_loss([0], [1.0]) == pytest.approx(-math.log(1e-12), rel=1e-4)
    assert log_loss([1, 0], [1.0, 0.0]) == pytest.approx(0.0, abs=2e-12)
    assert np.isfinite(normalized_entropy([1, 0], [0.0, 1.0]))


def test_a_perfect_order_has_auc_one_and_its_reverse_zero() -> None:
    assert auc([0, 0, 1], [-np.inf, 1.0, np.inf]) == 1.0
    assert auc([1, 1, 0], [-np.inf, 1.0, np.inf]) == 0.0
    assert auc([1, 0, 1, 0], [0.3] * 4) == 0.5


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_order_does_not_matter_and_a_weight_is_a_repetition(metric: Metric) -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.random(200).round(1).clip(0.05, 0.95)
    labels, weights = generator.integers(0, 2, 200), generator.integers(0, 4, 200)
    weighted = metric(labels, probabilities, weights=weights)
    order = generator.permutation(200)
    assert metric(labels[order], probabilities[order], weights=weights[order]) == pytest.approx(weighted, rel=RELATIVE)
    assert metric(labels.repeat(weights), probabilities.repeat(weights)) == pytest.approx(weighted, rel=RELATIVE)
    assert metric(labels, probabilities, weights=7.5 * weights) == pytest.approx(weighted, rel=RELATIVE)


def test_auc_depends_on_the_order_of_scores_only() -> None:
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=500), generator.integers(0, 2, 500)
    assert auc(labels, logits) == auc(labels, 1 / (1 + np.exp(-logits))) == auc(labels, 3 * logits - 100)
    assert auc(1 - labels, -logits) == pytest.approx(auc(labels, logits), rel=RELATIVE)


@pytest.mark.parametrize(
    ("labels", "scores", "weights", "message"),
    [
        ([0, np.nan], [0.1, 0.2], None, r"labels of 0 or 1.*got nan at row 1"),
        ([0, 0.5], [0.1, 0.2], None, r"labels of 0 or 1.*got 0.5 at row 1"),
        ([0, 1], [0.1, np.nan], None, "scores that are numbers; got nan at row 1"),
        ([0, 1], [0.1, 0.2], [1, -1], "weights of at least 0; got -1.0 at row 1"),
        ([0, 1], [0.1, 0.2], [np.inf, 1], "finite weights"),
        ([0, 1], [0.1], None, r"one length; got shapes \(2,\), \(1,\)"),
        ([[0, 1]], [[0.1, 0.2]], None, "one length"),
    ],
)
@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_what_is_not_a_row_is_refused(
    metric: Metric, labels: list[float], scores: list[float], weights: list[float] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        metric(labels, scores, weights=weights)


@pytest.mark.parametrize("metric", [log_loss, normalized_entropy, calibration])
@pytest.mark.parametrize("wrong", [-0.1, 1.1])
def test_probabilities_outside_the_unit_interval_are_refused(metric: Metric, wrong: float) -> None:
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\]"):
        metric([0, 1], [0.5, wrong])
