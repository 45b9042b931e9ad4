"""Do predicted rates come true: in total, and bin by bin."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from eval.metrics.rows import checked_probabilities, checked_rows, divide


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows of neighbouring probabilities: how many, the mean probability, and the rate that came true."""

    num_rows: int
    predicted: float
    actual: float


def calibration(labels: ArrayLike, probabilities: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Predicted positives over actual positives.

    Args:
        labels: [N], each 0 or 1.
        probabilities: [N], in [0, 1].
        weights: [N], at least 0; ones if absent.

    Returns:
        1 is ideal, above 1 promises too much; NaN without positives (ours: 0 would read as a measured value).

    Example:
        >>> calibration([1, 0, 0, 0], [0.5, 0.5, 0.0, 0.0])
        1.0

    Source: He et al. 2014, "Practical Lessons from Predicting Clicks on Ads at Facebook", section 2.
    """
    y, p, w = checked_rows(labels, probabilities, weights)
    return float(divide(np.sum(w * checked_probabilities(p)), np.sum(w * y)))


def calibration_curve(
    labels: ArrayLike, probabilities: ArrayLike, *, num_bins: int = 10, weights: ArrayLike | None = None
) -> tuple[CalibrationBin, ...]:
    """Bins of nearly equal numbers of rows by probability; equal probabilities share a bin, so there may be fewer.

    Args:
        labels: [N], each 0 or 1.
        probabilities: [N], in [0, 1].
        num_bins: at least 1.
        weights: [N], at least 0; ones if absent.

    Returns:
        Bins of rising probability; bins without weight are left out.
    """
    y, p, w = checked_rows(labels, probabilities, weights)
    order = np.argsort(checked_probabilities(p), kind="stable")
    y, p, w = y[order], p[order], w[order]
    cuts = np.arange(num_bins) * len(p) // num_bins
    starts = np.unique(np.searchsorted(p, p[cuts])) if len(p) else cuts[:0]
    bins: list[CalibrationBin] = []
    for start, end in pairwise([*starts, len(p)]):
        part = slice(start, end)
        if (weight := w[part].sum()) > 0:
            predicted, actual = w[part] @ p[part] / weight, w[part] @ y[part] / weight
            bins.append(CalibrationBin(int(end - start), float(predicted), float(actual)))
    return tuple(bins)
