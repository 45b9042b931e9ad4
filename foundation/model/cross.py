"""Cross layers: products of every input with learned mixtures of all inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CrossLayer(nn.Module):
    """`x' = x0 * (W x + b) + x`: each layer raises the order of the feature crosses by one.

    Args:
        width: D.
        rank: of W = U V; None for a whole matrix.

    Source: DCN-V2 (arXiv 2008.13535, equation 1); no nonlinearity between V and U, no mixture of experts.
    """

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.mix = (
            nn.Linear(width, width)
            if rank is None
            else nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
        )

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        """[C, D] inputs of the network and [C, D] of the layer → [C, D]."""
        return torch.addcmul(x, x0, self.mix(x))
