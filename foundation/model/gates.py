"""Surface-conditioned gates: one trunk for all surfaces, that each surface may turn up or down unit by unit."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class SurfaceGate(nn.Module):
    """`x * 2 sigmoid(W2 relu(W1 [surface token ; stop_gradient(x)] + b1) + b2)`: a factor in (0, 2) for each unit.

    W2 and b2 start at zero, so every factor starts at 1: a gated model begins as the model without gates, and a surface
    with few rows stays near it. What x is does not learn from how it is gated.

    Source: PEPNet (arXiv 2302.01115, gate neural unit), gamma = 2; the neutral start is ours.
    """

    def __init__(self, surface_width: int, width: int, *, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(surface_width + width, hidden)
        self.second = nn.Linear(hidden, width)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor, surface: Tensor) -> Tensor:
        """[N, D] and the surface token [N, D_s] of each row → [N, D]."""
        hidden = functional.relu(self.first(torch.cat([surface, x.detach()], dim=1)))
        return x * (2 * torch.sigmoid(self.second(hidden)))


class SurfaceExperts(nn.Module):
    """A layer of shared experts and one small expert a surface, mixed by a softmax that the surface alone decides.

    `y = sum_e g_e(surface) relu(E_e x) + O_surface x`. The surface's own expert starts at zero, and has no activation,
    which at zero would let nothing through to learn from.

    Source: progressive layered extraction (PLE, RecSys 2020), a single level; tasks are surfaces, and the own expert is
    added rather than mixed, so that it is neutral at first (ours).
    """

    def __init__(self, width: int, out: int, *, num_experts: int, num_surfaces: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.shared = nn.Linear(width, num_experts * out)
        self.mixture = nn.Embedding(num_surfaces, num_experts)
        self.own = nn.Parameter(torch.zeros(num_surfaces, width, out))
        nn.init.zeros_(self.mixture.weight)

    def forward(self, x: Tensor, surfaces: Tensor) -> Tensor:
        """[N, D] and [N] surface of each row → [N, out]."""
        experts = functional.relu(self.shared(x)).unflatten(1, (self.num_experts, -1))
        shared = (torch.softmax(self.mixture(surfaces), dim=1).unsqueeze(1) @ experts).squeeze(1)
        order = surfaces.argsort(stable=True)
        counts = torch.bincount(surfaces, minlength=len(self.own)).tolist()
        parts = [rows @ weight for rows, weight in zip(x[order].split(counts), self.own, strict=True)]
        return shared + torch.cat(parts)[order.argsort()]
