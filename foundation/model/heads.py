"""One head for each (surface, objective) pair that exists, on a shared trunk."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch import Tensor, nn

from foundation.data.schema import Schema


class SurfaceObjectiveHeads(nn.Module):
    """A linear head for each pair; a pair that does not exist gives NaN, which every loss and metric masks.

    Objectives whose labels come late have their heads on a detached trunk. In the log a row stands at the time of its
    request, with labels that were known only after the objective's delay; what the shared parameters learned from them
    would tell the scores of the next rows about the future.

    Source: ours, see `docs/decisions.md`.
    """

    exists: Tensor
    order: Tensor

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__()
        late = [objective.delay > timedelta(0) for objective in schema.objectives.values()]
        if all(late):  # then nothing else would teach the trunk
            late = [False] * len(late)
        places = {kind: [place for place, is_late in enumerate(late) if is_late == kind] for kind in (False, True)}
        num_surfaces = len(schema.surfaces)
        self.prompt = PairHeads(width, num_surfaces=num_surfaces, num_objectives=len(places[False]))
        self.late = PairHeads(width, num_surfaces=num_surfaces, num_objectives=len(places[True])) if any(late) else None
        order = torch.tensor([*places[False], *places[True]]).argsort()
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("exists", torch.from_numpy(schema.head_exists()), persistent=False)

    def start_at(self, log_odds: Tensor) -> None:
        """Let every head begin at its objective's log odds, [K]."""
        num_prompt = self.prompt.num_objectives
        first, last = log_odds[self.order.argsort()].split([num_prompt, len(log_odds) - num_prompt])
        with torch.no_grad():
            self.prompt.shared.bias.copy_(first)
            if self.late is not None:
                self.late.shared.bias.copy_(last)

    def forward(self, trunk: Tensor, surfaces: Tensor) -> Tensor:
        """[C, D] trunk, [C] surface of each candidate → [C, K] logits, NaN where the pair does not exist."""
        logits = self.prompt(trunk, surfaces)
        if self.late is not None:
            logits = torch.cat([logits, self.late(trunk.detach(), surfaces)], dim=1)
        return torch.where(self.exists[surfaces], logits[:, self.order], torch.nan)


class PairHeads(nn.Module):
    """Each head is the objective's shared head plus the surface's own correction.

    The correction starts at zero: a surface with few rows begins where all surfaces together stand.
    """

    def __init__(self, width: int, *, num_surfaces: int, num_objectives: int) -> None:
        super().__init__()
        self.num_objectives = num_objectives
        self.shared = nn.Linear(width, num_objectives)
        self.special = nn.Linear(width, num_surfaces * num_objectives)
        nn.init.zeros_(self.special.weight)
        nn.init.zeros_(self.special.bias)

    def forward(self, trunk: Tensor, surfaces: Tensor) -> Tensor:
        """[C, D] trunk, [C] surfaces → [C, K] logits."""
        own = self.special(trunk).unflatten(1, (-1, self.num_objectives))
        return self.shared(trunk) + own[torch.arange(len(trunk), device=trunk.device), surfaces]
