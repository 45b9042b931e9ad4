"""HSTU: self-attention over a history with a pointwise activation instead of a softmax."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from foundation.model.layout import Bucket, gather_padded, scatter_back, with_zero_row


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
        width = x.shape[1]
        u, vqk = functional.silu(self.uvqk(self.norm(x))).split([width, 3 * width], dim=1)
        vqk = with_zero_row(vqk)
        pooled: list[Tensor] = []
        for bucket in buckets:
            v, q, k = split_heads(gather_padded(vqk, bucket.events), 3 * self.heads).chunk(3, dim=1)
            pooled.append(merge_heads(pointwise_attention(q, k, v, num_positions=self.num_positions)))
        attended = scatter_back(pooled, [bucket.events for bucket in buckets], len(x))
        return self.out(self.attended_norm(attended) * u) + x


def pointwise_attention(q: Tensor, k: Tensor, v: Tensor, *, num_positions: int) -> Tensor:
    """`SiLU(q k^T / sqrt(d)) / N · v`. Padding adds nothing without a mask: its keys and values are 0, and SiLU(0) = 0.

    Args:
        q: [..., M, d].
        k: [..., L, d].
        v: [..., L, d].
        num_positions: N, the longest history.

    Returns:
        [..., M, d]; zeros where nothing is attended to.
    """
    return (functional.silu(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) / num_positions) @ v


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[b, L, H * d] → [b, H, L, d]."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[b, H, L, d] → [b, L, H * d]."""
    return x.transpose(1, 2).flatten(2)
