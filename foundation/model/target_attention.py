"""Candidate-to-history attention: what of the user's past speaks for or against this candidate."""

from __future__ import annotations

from torch import Tensor, nn

from foundation.kernels.activation import Pointwise
from foundation.model.gdpa import gdpa


class TargetAttention(nn.Module):
    """Candidates ask, events answer; pointwise activation as in HSTU, so an empty history gives zeros.

    Source: DIN's target attention (arXiv 1706.06978) in GDPA form: activation in place of softmax, no row norm.
    """

    def __init__(self, width: int, heads: int, form: Pointwise) -> None:
        super().__init__()
        self.heads, self.form = heads, form
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, candidates: Tensor, events: Tensor, candidate_offsets: Tensor, event_offsets: Tensor) -> Tensor:
        """[C, D] candidates, [T, D] events, [B + 1] int64 offsets of each → [C, D]."""
        k, v = (part.unflatten(1, (self.heads, -1)) for part in self.key_value(events).chunk(2, dim=1))
        q = self.query(candidates).unflatten(1, (self.heads, -1))
        answers = gdpa(q, k, v, candidate_offsets, event_offsets, form=self.form)
        return self.out(answers.flatten(1))
