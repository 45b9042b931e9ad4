"""Weighted draws from stretches of one array: pools of candidates, items that are on sale already."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def weight_edges(weights: NDArray[np.floating]) -> FloatArray:
    """Running sums, [N + 1], the first 0: place i owns what lies between edges i and i + 1."""
    return np.concatenate(([0.0], np.cumsum(weights)))


def draw_in_ranges(edges: FloatArray, uniform: FloatArray, *, first: Int64Array, end: Int64Array) -> Int64Array:
    """A place in first:end for each uniform number, with probability proportional to its weight.

    Args:
        edges: [N + 1] of all places, see `weight_edges`.
        uniform: any shape, in [0, 1).
        first: broadcasts to that shape; places, at least 0.
        end: the same; one past the last place, more than `first`.

    Example:
        >>> edges = weight_edges(np.array([1.0, 3.0, 4.0]))
        >>> draw_in_ranges(edges, np.array([0.1, 0.3, 0.9]), first=np.array([0]), end=np.array([2])).tolist()
        [0, 1, 1]
    """
    target = edges[first] + uniform * (edges[end] - edges[first])
    return np.clip(np.searchsorted(edges, target, side="right") - 1, first, end - 1)
