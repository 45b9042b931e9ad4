"""One head for each (surface, objective) pair that exists, on a shared trunk."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foundation.data.schema import Schema
from foundation.model.conditional import compose, products_of


class SurfaceObjectiveHeads(nn.Module):
    """A linear head for each pair; a pair that does not exist gives NaN, which every loss and metric masks.

    Each head is the objective's linear map, plus the log odds by which the surface differs, from zero on: a surface
    with few rows begins where all surfaces together stand. What else a surface has of its own, the trunk before it has
    by the surface's token and gates. Weights of its own here cost more than they gave: Adam moves each by the same step
    however rare the objective, so that what they learned of a rare one was mostly noise.
    """

    exists: Tensor
    log_variances: nn.Parameter | None

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__()
        num_surfaces, num_objectives = len(schema.surfaces), len(schema.objectives)
        self.products = products_of(schema, tuple(schema.objectives))
        self.shared = nn.Linear(width, num_objectives)
        self.own = nn.Parameter(torch.zeros(num_surfaces, num_objectives))
        self.register_parameter("log_variances", None)
        self.register_buffer("exists", torch.from_numpy(schema.head_exists()), persistent=False)

    def start_at(self, log_odds: Tensor) -> None:
        """Let every head begin at given log odds, [K]; those of a product are given what it is given."""
        with torch.no_grad():
            self.shared.bias.copy_(log_odds)

    def learn_uncertainties(self) -> None:
        """Add a parameter [K], at 0: the logarithm of each objective's uncertainty, which only the loss reads."""
        self.log_variances = nn.Parameter(torch.zeros(self.shared.out_features))

    def forward(self, trunk: Tensor, surfaces: Tensor) -> Tensor:
        """[C, D] trunk, [C] surface of each candidate → [C, K] logits, NaN where the pair does not exist."""
        with torch.autocast(trunk.device.type, enabled=False):  # a bfloat16 logit has 8 bits: many rows would tie
            logits = self.shared(trunk.float()) + self.own[surfaces]
        return torch.where(self.exists[surfaces], compose(logits, self.products), torch.nan)
