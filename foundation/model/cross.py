"""Cross layers: products of every input with learned mixtures of all inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foundation.model.split import SplitLinear


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


class CrossNetwork(nn.Module):
    """Cross layers, one after the other, over what a request and a candidate bring.

    The first layer mixes the inputs themselves, so that the request's half of its matrix is applied once a request.

    Args:
        request_width: D_r.
        candidate_width: D_c.
        num_layers: none leaves the inputs as they are.
        rank: of each layer's matrix; None for a whole one.
    """

    def __init__(self, request_width: int, candidate_width: int, *, num_layers: int, rank: int | None) -> None:
        super().__init__()
        width = request_width + candidate_width
        self.first = _FirstMix(request_width, candidate_width, rank) if num_layers else None
        self.layers = nn.ModuleList(CrossLayer(width, rank) for _ in range(num_layers - 1))

    def forward(self, requests: Tensor, candidates: Tensor, owner: Tensor) -> Tensor:
        """[B, D_r], [C, D_c] and [C] request of each candidate → [C, D_r + D_c]."""
        x0 = torch.cat([requests.index_select(0, owner), candidates], dim=1)
        if self.first is None:
            return x0
        x = torch.addcmul(x0, x0, self.first(requests, candidates, owner))
        for layer in self.layers:
            x = layer(x0, x)
        return x


class _FirstMix(nn.Module):
    """`W x0 + b` of the first layer."""

    def __init__(self, request_width: int, candidate_width: int, rank: int | None) -> None:
        super().__init__()
        width = request_width + candidate_width
        self.split = SplitLinear(request_width, candidate_width, rank or width, bias=rank is None)
        self.up = nn.Identity() if rank is None else nn.Linear(rank, width)

    def forward(self, requests: Tensor, candidates: Tensor, owner: Tensor) -> Tensor:
        return self.up(self.split(requests, candidates, owner))
