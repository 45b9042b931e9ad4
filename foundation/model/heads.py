"""One head for each (surface, objective) pair that exists, on a shared trunk."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foundation.data.schema import Schema


class SurfaceObjectiveHeads(nn.Module):
    """A linear head for each pair; a pair that does not exist gives NaN, which every loss and metric masks."""

    exists: Tensor

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__()
        self.num_objectives = len(schema.objectives)
        exists = torch.from_numpy(schema.head_exists())
        self.register_buffer("exists", exists, persistent=False)
        self.shared = nn.Linear(width, self.num_objectives)
        self.special = nn.Linear(width, exists.numel())
        nn.init.zeros_(self.special.weight)
        nn.init.zeros_(self.special.bias)

    def forward(self, trunk: Tensor, surfaces: Tensor) -> Tensor:
        """[C, D] trunk, [C] surface of each candidate → [C, K] logits, NaN where the pair does not exist.

        Each head is the objective's shared head plus the surface's own correction, which starts at zero: a surface with
        few rows begins where all surfaces together stand.
        """
        own = self.special(trunk).unflatten(1, (-1, self.num_objectives))
        rows = torch.arange(len(trunk), device=trunk.device)
        logits = self.shared(trunk) + own[rows, surfaces]
        return torch.where(self.exists[surfaces], logits, torch.nan)
