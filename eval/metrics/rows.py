"""What every metric takes: labels, predictions and weights of N rows, checked once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def checked_rows(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None) -> tuple[Floats, Floats, Floats]:
    """The three as float64 [N]; weights are ones if absent.

    Raises:
        ValueError: shapes differ, a label is not 0 or 1 (unknown labels are the caller's to mask), a score is NaN, or a
            weight is negative or not finite.
    """
    y, s = np.asarray(labels, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    w = np.ones_like(y) if weights is None else np.asarray(weights, dtype=np.float64)
    if not (y.ndim == 1 and y.shape == s.shape == w.shape):
        raise ValueError(f"expected three arrays of one length; got shapes {y.shape}, {s.shape}, {w.shape}")
    _refuse((y != 0) & (y != 1), y, "labels of 0 or 1, unknown ones masked out")
    _refuse(np.isnan(s), s, "scores that are numbers")
    _refuse(~(np.isfinite(w) & (w >= 0)), w, "finite weights of at least 0")
    return y, s, w


def checked_probabilities(probabilities: Floats) -> Floats:
    """The same array.

    Raises:
        ValueError: one lies outside [0, 1].
    """
    _refuse((probabilities < 0) | (probabilities > 1), probabilities, "probabilities in [0, 1]")
    return probabilities


def divide(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """Elementwise quotient, NaN ("undefined") where the denominator is 0."""
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return np.where(bottom != 0, top / np.where(bottom != 0, bottom, 1.0), np.nan)


def sum_by(index: NDArray[np.int64], values: Floats, num_groups: int) -> Floats:
    """Sums [num_groups] of the values [N] by their group's index [N]."""
    return np.asarray(np.bincount(index, weights=values, minlength=num_groups), dtype=np.float64)


def _refuse(wrong: NDArray[np.bool_], values: Floats, expected: str) -> None:
    if wrong.any():
        position = int(np.argmax(wrong))
        raise ValueError(f"expected {expected}; got {values[position]} at row {position} ({wrong.sum()} such rows)")
