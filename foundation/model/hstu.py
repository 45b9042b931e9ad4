"""HSTU: self-attention over a history with a pointwise activation instead of a softmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.model.layout import Bucket, gather_padded


class HstuLayer(nn.Module):
    """One block: `y = f2(LN(A V) * U) + x`, `A = SiLU(Q K^T / sqrt(d)) / N`, `U, V, Q, K = SiLU(f1(LN(x)))`.

    N is a constant of the model, not the length of a row, so that a score does not depend on padding and the exported
    graph carries the same constant. Every event of the history precedes the request, so attention is not causal: each
    event sees all.

    Source: HSTU (arXiv 2402.17152) as in meta-recsys/generative-recommenders; the 1/sqrt(d) inside the activation and
    the norm before the gate follow it, the relative bias is replaced by the time embedding of the events (ours: one
    table, no T x T bias).
    """

    def __init__(self, width: int, heads: int, num_positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.num_positions = num_positions
        self.norm = nn.LayerNorm(width)
        self.uvqk = nn.Linear(width, 4 * width)
        self.attended_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, buckets: tuple[Bucket, ...]) -> Tensor:
        """[T, D] events → [T, D]."""
        u, v, q, k = functional.silu(self.uvqk(self.norm(x))).chunk(4, dim=1)
        attended = torch.zeros_like(x)
        for bucket in buckets:
            mask = bucket.event_mask(len(x))
            pooled = pointwise_attention(
                *(self._split(gather_padded(part, bucket.events)) for part in (q, k, v)),
                mask[:, None, None, :],
                num_positions=self.num_positions,
            )
            merged = pooled.transpose(1, 2).flatten(2)
            attended = attended.index_copy(0, bucket.events[mask], merged[mask])
        return self.out(self.attended_norm(attended) * u) + x

    def _split(self, x: Tensor) -> Tensor:
        """[b, L, D] → [b, H, L, D / H]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def pointwise_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, num_positions: int) -> Tensor:
    """`SiLU(q k^T / sqrt(d)) / N · v`; pairs outside the mask count nothing.

    Args:
        q: [..., M, d]; k, v: [..., L, d].
        mask: broadcastable to [..., M, L], True where the pair counts. Applied after the activation.
        num_positions: N, the longest history.

    Returns:
        [..., M, d]; zeros where nothing is attended to.
    """
    weights = functional.silu(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) / num_positions
    return (weights * mask) @ v
