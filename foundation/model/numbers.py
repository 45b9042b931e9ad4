"""Numbers as learned piecewise linear functions: what a tree finds by splits, a network is given as bins."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

NUM_BINS = 16
NUM_CHANNELS = 8

NumberGroup = Literal["request", "candidate"]


def quantile_edges(sample: NDArray[np.float32]) -> Tensor:
    """[S, F] numbers of at least one row → [F, NUM_BINS + 1] float64: the quantiles that bins begin and end at.

    Example:
        >>> quantile_edges(np.arange(33, dtype=np.float32)[:, None])[0, :3].tolist()
        [0.0, 2.0, 4.0]
    """
    edges = np.quantile(sample.astype(np.float64), np.linspace(0, 1, NUM_BINS + 1), axis=0)
    return torch.from_numpy(edges.T.copy())


class NumberEncoding(nn.Module):
    """Each number becomes `NUM_CHANNELS` learned functions of it, linear between quantiles of the numbers seen.

    A value fills the bins below it and a share of its own, [1, 1, 0.3, 0, ...]; a matrix and a ReLU of its own take
    each feature from bins to channels. Repeated quantiles make a bin without width: a step just above that value.
    Until `fit` all bins lie in [0, 1].

    Args:
        num_features: F.
        group: whose numbers these are.

    Source: piecewise linear encoding with a layer a feature (arXiv 2203.05556, sections 3.2 and 3.4).
    """

    low: Tensor
    scale: Tensor

    def __init__(self, num_features: int, group: NumberGroup) -> None:
        super().__init__()
        self.group: NumberGroup = group
        self.width = num_features * NUM_CHANNELS
        steps = torch.arange(NUM_BINS) / NUM_BINS
        self.register_buffer("low", steps.expand(num_features, NUM_BINS).clone())
        self.register_buffer("scale", torch.full((num_features, NUM_BINS), float(NUM_BINS)))
        self.weight = nn.Parameter(torch.randn(num_features, NUM_BINS, NUM_CHANNELS) * 0.3 * NUM_BINS**-0.5)
        self.bias = nn.Parameter(torch.zeros(num_features, 1, NUM_CHANNELS))

    def fit(self, edges: Tensor) -> None:
        """Take the bins' edges, [F, NUM_BINS + 1] as `quantile_edges` has them."""
        low, high = edges[:, :-1], edges[:, 1:]
        self.low.copy_(low)
        self.scale.copy_(1 / (high - low).clamp(min=1e-6))

    def forward(self, numbers: Tensor) -> Tensor:
        """[N, F] float32 → [N, F * NUM_CHANNELS]."""
        filled = ((numbers.t().unsqueeze(2) - self.low.unsqueeze(1)) * self.scale.unsqueeze(1)).clamp(0, 1)
        return torch.relu(torch.baddbmm(self.bias, filled, self.weight)).transpose(0, 1).flatten(1)
