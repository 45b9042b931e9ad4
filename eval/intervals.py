"""How sure a measured number is: bootstrap over users, whose rows hang together.

A statistic is a function of how often each cluster is counted, [B, C] → [B]; counting each once gives the estimate. So
the difference or ratio of two statistics over the same rows is again a statistic, and its interval is paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.metrics.entropy import entropy_of_sums, row_losses
from eval.metrics.ranking import auc_by_group
from eval.metrics.rows import Floats, checked_probabilities, checked_rows, divide, sum_by

Statistic = Callable[[Floats], Floats]

LARGEST_UNDEFINED_SHARE = 0.05
CHUNK_NUMBERS = 8_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and how far it may be from the truth.

    Attributes:
        estimate: on the rows as they are; NaN if undefined.
        low: lower end of the interval; NaN if there are fewer than two clusters, or too many undefined resamples.
        high: upper end, likewise.
        standard_error: standard deviation over the resamples, likewise.
        num_clusters: users that the rows come from.
        num_undefined: resamples without a value (only one class in them, say), which are left out.
    """

    estimate: float
    low: float
    high: float
    standard_error: float
    num_clusters: int
    num_undefined: int


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are made: percentiles over `num_resamples` draws of as many clusters as there are.

    Source: Field and Welsh 2007, "Bootstrapping clustered data".
    """

    num_resamples: int = 500
    confidence: float = 0.95
    seed: int = 0

    def interval(self, statistic: Statistic, num_clusters: int) -> Interval:
        """Estimate and interval of a statistic; the same seed draws the same resamples for every statistic."""
        estimate = float(statistic(np.ones((1, num_clusters)))[0])
        if num_clusters < 2 or np.isnan(estimate):
            return Interval(estimate, np.nan, np.nan, np.nan, num_clusters, 0)
        drawn = np.concatenate([statistic(counts) for counts in self._draws(num_clusters)])
        values = drawn[np.isfinite(drawn)]
        num_undefined = len(drawn) - len(values)
        if num_undefined > LARGEST_UNDEFINED_SHARE * len(drawn):
            return Interval(estimate, np.nan, np.nan, np.nan, num_clusters, num_undefined)
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(values, [tail, 1 - tail])
        return Interval(estimate, float(low), float(high), float(values.std(ddof=1)), num_clusters, num_undefined)

    def _draws(self, num_clusters: int) -> Iterator[Floats]:
        generator = np.random.default_rng(self.seed)
        size = max(1, CHUNK_NUMBERS // num_clusters)
        for start in range(0, self.num_resamples, size):
            chunk = range(start, min(start + size, self.num_resamples))
            drawn = (generator.integers(num_clusters, size=num_clusters) for _ in chunk)
            yield np.stack([np.bincount(clusters, minlength=num_clusters) for clusters in drawn]).astype(np.float64)


STANDARD = Bootstrap()
"""What evaluations use unless told otherwise."""


@dataclass(frozen=True, slots=True)
class ClusteredRows:
    """Rows of one predictor, and the cluster each belongs to; its methods are the statistics.

    Attributes:
        labels: [N] float64, each 0 or 1.
        probabilities: [N] float64.
        weights: [N] float64.
        cluster: [N] int64, in [0, num_clusters).
        num_clusters: clusters in all.
    """

    labels: Floats
    probabilities: Floats
    weights: Floats
    cluster: NDArray[np.int64]
    num_clusters: int

    def log_loss(self) -> Statistic:
        """Mean log loss in nats."""
        sums = self._sums(row_losses(self.labels, self.probabilities), np.ones_like(self.labels))
        return lambda counts: divide(*(counts @ sums).T)

    def normalized_entropy(self) -> Statistic:
        """Log loss over that of the resample's own mean label."""
        sums = self._sums(row_losses(self.labels, self.probabilities), np.ones_like(self.labels), self.labels)
        return lambda counts: entropy_of_sums(*(counts @ sums).T)

    def calibration(self) -> Statistic:
        """Predicted over actual positives."""
        sums = self._sums(self.probabilities, self.labels)
        return lambda counts: divide(*(counts @ sums).T)

    def auc(self) -> Statistic:
        """Area under the ROC curve, from ranks that are sorted once."""
        positive = self.labels == 1
        order = np.argsort(self.probabilities[~positive], kind="stable")
        negatives = self.probabilities[~positive][order]
        negative_weight, negative_cluster = self.weights[~positive][order], self.cluster[~positive][order]
        positive_weight, positive_cluster = self.weights[positive], self.cluster[positive]
        below = np.searchsorted(negatives, self.probabilities[positive], side="left")
        up_to = np.searchsorted(negatives, self.probabilities[positive], side="right")

        def one(counts: Floats) -> float:
            ranked = np.concatenate(([0.0], np.cumsum(negative_weight * counts[negative_cluster])))
            weight = positive_weight * counts[positive_cluster]
            return float(divide(weight @ (ranked[below] + ranked[up_to]) / 2, weight.sum() * ranked[-1]))

        return lambda counts: np.array([one(row) for row in counts])

    def grouped_auc(self, groups: ArrayLike) -> Statistic:
        """Mean AUC of groups that lie within one cluster each, weighted by their candidates ([N] groups)."""
        values, sizes, row = auc_by_group(self.labels, self.probabilities, groups, weights=self.weights)
        if np.any(self.cluster[row][np.unique(groups, return_inverse=True)[1]] != self.cluster):
            raise ValueError("expected each group within one cluster; got a group that spans several")
        used = ~np.isnan(values)
        cluster = self.cluster[row][used]
        parts = [values[used] * sizes[used], sizes[used]]
        sums = np.stack([sum_by(cluster, part, self.num_clusters) for part in parts], axis=1)
        return lambda counts: divide(*(counts @ sums).T)

    def _sums(self, *columns: Floats) -> Floats:
        parts = [sum_by(self.cluster, self.weights * column, self.num_clusters) for column in columns]
        return np.stack(parts, axis=1)


def clustered_rows(
    labels: ArrayLike, probabilities: ArrayLike, clusters: ArrayLike, *, weights: ArrayLike | None = None
) -> ClusteredRows:
    """Check and number the clusters: labels, probabilities and clusters are [N], clusters anything that sorts.

    Example:
        >>> rows = clustered_rows([0, 1, 0, 1], [0.2, 0.8, 0.3, 0.6], ["ann", "ann", "bob", "bob"])
        >>> Bootstrap().interval(rows.auc(), rows.num_clusters).estimate
        1.0
    """
    y, p, w = checked_rows(labels, probabilities, weights)
    names, cluster = np.unique(np.asarray(clusters), return_inverse=True)
    if cluster.shape != y.shape:
        raise ValueError(f"expected one cluster a row, {y.shape}; got shape {cluster.shape}")
    return ClusteredRows(y, checked_probabilities(p), w, cluster.astype(np.int64), len(names))


def difference(left: Statistic, right: Statistic) -> Statistic:
    """The statistic `left - right`, resample by resample."""
    return lambda counts: left(counts) - right(counts)


def ratio(top: Statistic, bottom: Statistic) -> Statistic:
    """The statistic `top / bottom`, resample by resample."""
    return lambda counts: divide(top(counts), bottom(counts))
