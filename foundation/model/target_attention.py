"""Candidate-to-history attention: what of the user's past speaks for or against this candidate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foundation.model.hstu import pointwise_attention
from foundation.model.layout import Bucket, gather_padded


class TargetAttention(nn.Module):
    """Candidates ask, encoded events answer; pointwise activation as in HSTU, so an empty history gives zeros.

    Source: DIN's target attention (arXiv 1706.06978) in GDPA form: activation in place of softmax, no row norm.
    """

    def __init__(self, width: int, heads: int, num_positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.num_positions = num_positions
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, candidates: Tensor, events: Tensor, buckets: tuple[Bucket, ...]) -> Tensor:
        """[C, D] candidates, [T, D] encoded events → [C, D]."""
        q = self.query(candidates)
        k, v = self.key_value(events).chunk(2, dim=1)
        answer = torch.zeros_like(q)
        for bucket in buckets:
            asked = bucket.candidates < len(candidates)
            pooled = pointwise_attention(
                self._split(gather_padded(q, bucket.candidates)),
                self._split(gather_padded(k, bucket.events)),
                self._split(gather_padded(v, bucket.events)),
                bucket.event_mask(len(events))[:, None, None, :],
                num_positions=self.num_positions,
            )
            answer = answer.index_copy(0, bucket.candidates[asked], pooled.transpose(1, 2).flatten(2)[asked])
        return self.out(answer)

    def _split(self, x: Tensor) -> Tensor:
        """[b, M, D] → [b, H, M, D / H]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)
