"""Pooling of a history into a few tokens by learned seeds that attend over it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foundation.model.kron import SumKronLinear
from foundation.model.layout import bucket_by_length, gather_buckets, scatter_back


class SeedPooling(nn.Module):
    """`out(concat_h softmax(q_h K_h^T / sqrt(d)) V_h)`, q learned: as many tokens as seeds; zeros for an empty history.

    No request has a query of its own, so the keys are never made: `q_h (W_h x) = (q_h W_h) x` is one product of the
    flat events with S * H columns. The exponentials are taken on the flat events too; only the sums over events are by
    buckets, with the denominator as one more column of the values. There are no biases, so that zeros stay zeros.

    Source: pooling by multi-head attention of Set Transformer (arXiv 1810.00825), as S_pma in InterFormer
    (arXiv 2411.09852); without the feed-forward layer, the residual on the seed and the norms.
    """

    def __init__(self, width: int, *, num_tokens: int, heads: int) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.seeds = nn.Parameter(torch.randn(heads, num_tokens, width // heads))
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, events: Tensor, offsets: Tensor) -> Tensor:
        """[T, D] events, [B + 1] int64 offsets of the histories → [B, S, D]."""
        heads, num_tokens, head_width = self.seeds.shape
        asked = (self.seeds * head_width**-0.5) @ self.key.weight.unflatten(0, (heads, head_width))  # [H, S, D]
        weights = _exponentials(events @ asked.flatten(0, 1).t(), offsets).unflatten(1, (heads, num_tokens))
        values = self.value(events).unflatten(1, (heads, head_width))
        values = torch.cat([values, values.new_ones((len(events), heads, 1))], dim=2)

        places = torch.arange(len(offsets), device=offsets.device)
        buckets = bucket_by_length(offsets, places)  # one "candidate" a request: the request
        padded = [bucket.events for bucket in buckets]
        sums = [
            w.permute(0, 2, 3, 1) @ v.transpose(1, 2)
            for w, v in zip(gather_buckets(weights, padded), gather_buckets(values, padded), strict=True)
        ]
        joined = scatter_back(
            [part.flatten(1).unsqueeze(1) for part in sums], [bucket.candidates for bucket in buckets], len(offsets) - 1
        )
        totals = joined.unflatten(1, (heads, num_tokens, head_width + 1))
        means = totals[..., :-1] / torch.where(totals[..., -1:] > 0, totals[..., -1:], 1)
        return self.out(means.transpose(1, 2).flatten(2))


class HierarchicalSeedPooling(nn.Module):
    """Many seeds ask, then a Kronecker map makes fewer tokens of their answers.

    Source: HSP of Kunlun (arXiv 2602.10016). The norm of the learned seeds is left out: it rescales parameters.
    """

    def __init__(self, width: int, *, num_seeds: int, num_tokens: int, heads: int, num_terms: int = 8) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.ask = SeedPooling(width, num_tokens=num_seeds, heads=heads)
        self.reduce = SumKronLinear(num_seeds, num_tokens, width, num_terms=num_terms)

    def forward(self, events: Tensor, offsets: Tensor) -> Tensor:
        """[T, D] events, [B + 1] int64 offsets of the histories → [B, num_tokens, D]."""
        return self.reduce(self.ask(events, offsets))


def _exponentials(scores: Tensor, offsets: Tensor) -> Tensor:
    """[T, N] → `exp(scores - m)`, m the largest of the same request and column, so that at least one is 1.

    m is a constant to the gradient: it falls out of the quotient.
    """
    with torch.no_grad():
        largest = torch.segment_reduce(scores.detach(), "max", offsets=offsets, axis=0)
    return torch.exp(scores - largest.repeat_interleave(offsets.diff(), dim=0))
