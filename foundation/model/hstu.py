"""HSTU: self-attention over a history with a pointwise activation instead of a softmax."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from foundation.kernels.activation import Pointwise
from foundation.model.gdpa import gdpa
from foundation.model.rotary import Rotary


class HstuLayer(nn.Module):
    """One block: `y = f2(LN(A V) * U) + x`, `A = act(Q K^T / sqrt(d)) / N`, `U, V, Q, K = SiLU(f1(LN(x)))`.

    N is a constant of the model, not the length of a row, so that a score does not depend on padding and the exported
    graph carries the same constant. Every event of the history precedes the request, so attention is not causal: each
    event sees all.

    Source: HSTU (arXiv 2402.17152) as in meta-recsys/generative-recommenders; the 1/sqrt(d) inside the activation and
    the norm before the gate follow it, the relative bias is replaced by the time embedding of the events (ours: one
    table, no T x T bias) and, where a rotary is given, by turning q and k.
    """

    def __init__(self, width: int, heads: int, form: Pointwise, *, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.heads, self.form, self.rotary = heads, form, rotary
        self.norm = nn.LayerNorm(width)
        self.uvqk = nn.Linear(width, 4 * width)
        self.attended_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, offsets: Tensor, ages_days: Tensor | None = None) -> Tensor:
        """[T, D] events, [B + 1] int64 offsets of the histories, [T] ages if there is a rotary → [T, D]."""
        u, *vqk = functional.silu(self.uvqk(self.norm(x))).chunk(4, dim=1)
        v, q, k = (part.unflatten(1, (self.heads, -1)) for part in vqk)
        if self.rotary is not None:
            assert ages_days is not None, "a rotary turns by the events' ages"
            phases = self.rotary.phases(offsets, ages_days)
            q, k = self.rotary(q, phases), self.rotary(k, phases)
        attended = gdpa(q, k, v, offsets, offsets, form=self.form)
        return self.out(self.attended_norm(attended.flatten(1)) * u) + x
