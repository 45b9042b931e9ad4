"""Candidate-to-history attention: what of the user's past speaks for or against this candidate."""

from __future__ import annotations

from torch import Tensor, nn

from foundation.model.hstu import merge_heads, pointwise_attention, split_heads
from foundation.model.layout import Bucket, gather_padded, scatter_back, with_zero_row


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
        q = with_zero_row(self.query(candidates))
        kv = with_zero_row(self.key_value(events))
        answers: list[Tensor] = []
        for bucket in buckets:
            asked = split_heads(gather_padded(q, bucket.candidates), self.heads)
            k, v = split_heads(gather_padded(kv, bucket.events), 2 * self.heads).chunk(2, dim=1)
            answers.append(merge_heads(pointwise_attention(asked, k, v, num_positions=self.num_positions)))
        return self.out(scatter_back(answers, [bucket.candidates for bucket in buckets], len(candidates)))
