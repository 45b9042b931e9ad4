"""Log loss, and the same relative to knowing the mean label only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from eval.metrics.rows import Floats, checked_probabilities, checked_rows, divide

SMALLEST = 1e-12
"""Probabilities are clipped to [SMALLEST, 1 - SMALLEST]: one certain and wrong row costs 27.6 nats, not infinity."""


def log_loss(labels: ArrayLike, probabilities: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Mean of -ln(probability given to what happened), in nats.

    Args:
        labels: [N], each 0 or 1.
        probabilities: [N], in [0, 1].
        weights: [N], at least 0; ones if absent.

    Returns:
        At least 0, lower is better; NaN if there are no rows or all weights are 0.

    Example:
        >>> round(log_loss([1, 0], [0.8, 0.2]), 4)
        0.2231
    """
    y, p, w = checked_rows(labels, probabilities, weights)
    return float(divide(np.sum(w * row_losses(y, p)), w.sum()))


def normalized_entropy(labels: ArrayLike, probabilities: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Log loss divided by that of always predicting the mean label.

    Below 1 beats the constant, 1 is the constant, 0 is perfect. It depends on the base rate: compare it on the same
    rows only.

    Args:
        labels: [N], each 0 or 1.
        probabilities: [N], in [0, 1].
        weights: [N], at least 0; ones if absent.

    Returns:
        A ratio without unit; NaN if only one class carries weight, since the divisor is then 0 (ours).

    Example:
        >>> round(normalized_entropy([0, 1, 0, 1], [0.5, 0.5, 0.5, 0.5]), 6)
        1.0

    Source: He et al. 2014, "Practical Lessons from Predicting Clicks on Ads at Facebook", section 2.
    """
    y, p, w = checked_rows(labels, probabilities, weights)
    return float(entropy_of_sums(np.sum(w * row_losses(y, p)), w.sum(), np.sum(w * y)))


def row_losses(labels: Floats, probabilities: Floats) -> Floats:
    """Log loss of each row: [N], in nats, in [0, 27.7]."""
    p = np.clip(checked_probabilities(probabilities), SMALLEST, 1 - SMALLEST)
    return -np.where(labels == 1, np.log(p), np.log1p(-p))


def entropy_of_sums(loss: ArrayLike, weight: ArrayLike, positive: ArrayLike) -> Floats:
    """Normalised entropy from weighted sums of row losses, of ones and of labels; any shape, elementwise."""
    loss, weight, positive = (np.asarray(value, dtype=np.float64) for value in (loss, weight, positive))
    negative = weight - positive
    mixed = (positive > 0) & (negative > 0)
    rate = np.where(mixed, divide(positive, weight), 0.5)
    reference = -positive * np.log(rate) - negative * np.log1p(-rate)
    return np.where(mixed, divide(loss, reference), np.nan)
