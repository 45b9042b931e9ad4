"""Does a positive score above a negative: over all rows, and within groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.metrics.rows import Floats, checked_rows, divide, sum_by


@dataclass(frozen=True, slots=True)
class GroupedAuc:
    """AUC within groups, averaged.

    Attributes:
        value: mean of the groups' AUC, each weighted by its candidates; NaN if no group has both classes.
        num_groups: groups in all.
        num_used: groups with both classes.
        num_dropped: groups with one class, which have no AUC and count nowhere.
    """

    value: float
    num_groups: int
    num_used: int
    num_dropped: int


def auc(labels: ArrayLike, scores: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Probability that a random positive scores above a random negative; ties count one half. Exact.

    Args:
        labels: [N], each 0 or 1.
        scores: [N], logits or probabilities: only their order matters.
        weights: [N], at least 0; ones if absent.

    Returns:
        In [0, 1]; NaN if only one class carries weight.

    Example:
        >>> auc([0, 1, 0, 1], [0.1, 0.2, 0.2, 0.3])
        0.875

    Source: Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve".
    """
    y, s, w = checked_rows(labels, scores, weights)
    return float(_auc_by_group(y, s, w, np.zeros(len(y), dtype=np.int64), 1)[0])


def grouped_auc(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, weights: ArrayLike | None = None
) -> GroupedAuc:
    """AUC within each group, averaged by the weight of the group's candidates; groups with one class are dropped.

    Args:
        labels: [N], each 0 or 1.
        scores: [N]: only their order within a group matters.
        groups: [N], anything that sorts: the request, or the user.
        weights: [N], at least 0; ones if absent.

    Returns:
        The mean and how many groups it rests on.

    Example:
        >>> grouped_auc([0, 1, 0, 1, 1], [0.1, 0.2, 0.9, 0.8, 0.5], [7, 7, 8, 8, 9])
        GroupedAuc(value=0.5, num_groups=3, num_used=2, num_dropped=1)

    Source: Zhu et al. 2017, "Optimized Cost per Click in Taobao Display Advertising", which weights a user by
        impressions or clicks; a request by its candidates here.
    """
    values, sizes, _ = auc_by_group(labels, scores, groups, weights=weights)
    used = ~np.isnan(values)
    value = float(divide(np.sum(sizes[used] * values[used]), sizes[used].sum()))
    return GroupedAuc(value, num_groups=len(values), num_used=int(used.sum()), num_dropped=int((~used).sum()))


def auc_by_group(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, weights: ArrayLike | None = None
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """AUC of each group [G], NaN where it has one class; its weight [G]; and one row of it [G]. Groups are sorted."""
    y, s, w = checked_rows(labels, scores, weights)
    _, first, group = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
    if group.shape != y.shape:
        raise ValueError(f"expected one group a row, {y.shape}; got shape {group.shape}")
    group, num_groups = group.astype(np.int64), len(first)
    return _auc_by_group(y, s, w, group, num_groups), sum_by(group, w, num_groups), first.astype(np.int64)


def _auc_by_group(y: Floats, s: Floats, w: Floats, group: NDArray[np.int64], num_groups: int) -> Floats:
    order = np.lexsort((s, group))
    y, s, w, group = y[order], s[order], w[order], group[order]
    positive, negative = w * y, w * (1 - y)
    below = np.concatenate(([0.0], np.cumsum(negative)))
    is_start = np.ones(len(y), dtype=bool)
    is_start[1:] = (np.diff(group) != 0) | (s[1:] != s[:-1])
    start = np.flatnonzero(is_start)
    tie = np.cumsum(is_start) - 1
    end = np.append(start[1:], len(y))
    # A tie of scores counts half of its negatives: the mean of the sums just below and just above it.
    middle = (below[start] + below[end])[tie] / 2
    base = below[np.searchsorted(group, np.arange(num_groups))]
    wins = sum_by(group, positive * (middle - base[group]), num_groups)
    pairs = sum_by(group, positive, num_groups) * sum_by(group, negative, num_groups)
    return divide(wins, pairs)
