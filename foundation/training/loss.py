"""The training loss: binary cross entropy on the labels that are known."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from foundation.parallel.reduce import mean_over_ranks


def masked_cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor, *, log_variances: Tensor | None = None
) -> Tensor:
    """Weighted sum over objectives of the mean cross entropy of the objective's known labels.

    Args:
        logits: [N, K]; NaN where the (surface, objective) pair has no head.
        labels: [N, K] in [0, 1]; NaN where unknown.
        weights: [K], at least 0.
        log_variances: [K] s; an objective's mean L then counts as exp(-s) L + s / 2, with its least at s = log(2 L).

    Returns:
        A scalar in nats. An objective without a known label adds 0, with a gradient of 0. On several ranks each sums
        its own rows over the mean count of known labels, so that the mean over ranks is the loss of all rows together.

    Source: Kendall et al. (arXiv 1705.07115), eq. 10 with s for the logarithm of the variance.

    Example:
        >>> half = masked_cross_entropy(torch.zeros(2, 1), torch.tensor([[1.0], [torch.nan]]), torch.ones(1))
        >>> round(half.item(), 4)
        0.6931
    """
    known = labels.isfinite() & logits.isfinite()
    safe_logits, safe_labels = torch.where(known, logits, 0.0), torch.where(known, labels, 0.0)
    losses = functional.binary_cross_entropy_with_logits(safe_logits, safe_labels, reduction="none")
    counts = mean_over_ranks(known.sum(0))
    means = (losses * known).sum(0) / torch.where(counts > 0, counts, 1)
    if log_variances is not None:
        means = torch.exp(-log_variances) * means + (counts > 0) * log_variances / 2
    return (means * weights).sum()
