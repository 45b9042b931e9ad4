"""InterFormer: tokens of the request and events of its history change each other, layer by layer, through summaries."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foundation.kernels.activation import Pointwise
from foundation.model.gdpa import gdpa
from foundation.model.history import Events
from foundation.model.layout import bucket_by_length, gather_buckets, gather_padded, scatter_back, with_zero_row


class TokenGate(nn.Module):
    """`sigmoid(W x + b) * x`, of the two readings of InterFormer's gate the one that keeps the sign and scale of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] → [..., D]."""
        return x * torch.sigmoid(self.gate(x))


class TokenSummary(nn.Module):
    """X_sum: n tokens mixed linearly to a few, then gated."""

    def __init__(self, num_tokens: int, width: int, *, num_summary: int) -> None:
        super().__init__()
        self.mix = nn.Linear(num_tokens, num_summary, bias=False)
        self.gate = TokenGate(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, D] → [B, num_summary, D]."""
        return self.gate(self.mix.weight @ x)


class PersonalVector(nn.Module):
    """PFFN as an element-wise factor: `x_t * f(X_sum)`, f an MLP. Source: InterFormer as torch-rechub reads it."""

    def __init__(self, width: int, *, num_summary: int, hidden: int) -> None:
        super().__init__()
        self.factors = _mlp(num_summary * width, hidden, width)

    def forward(self, events: Tensor, offsets: Tensor, summary: Tensor) -> Tensor:
        """[T, D], [B + 1] and [B, n_sum, D] → [T, D]."""
        return events * self.factors(summary.flatten(1)).repeat_interleave(offsets.diff(), dim=0)


class PersonalMatrix(nn.Module):
    """PFFN as a matrix a request: `x_t f(X_sum)`, f an MLP to D x D. Source: InterFormer (arXiv 2411.09852)."""

    def __init__(self, width: int, *, num_summary: int, hidden: int) -> None:
        super().__init__()
        self.matrices = _mlp(num_summary * width, hidden, width * width)

    def forward(self, events: Tensor, offsets: Tensor, summary: Tensor) -> Tensor:
        """[T, D], [B + 1] and [B, n_sum, D] → [T, D]."""
        matrices = self.matrices(summary.flatten(1)).unflatten(1, (events.shape[1], -1))
        buckets = bucket_by_length(offsets, torch.arange(len(offsets), device=offsets.device))
        places = [bucket.events for bucket in buckets]
        matrices = gather_buckets(matrices, [bucket.candidates.squeeze(1) for bucket in buckets])
        parts = [rows @ m for rows, m in zip(gather_buckets(events, places), matrices, strict=True)]
        return scatter_back(parts, places, len(events))


class PersonalAttention(nn.Module):
    """PFFN as attention of the events over the summary tokens, `act(x_t K^T) V`, K and V made of X_sum.

    Source: GDPA of Kunlun (arXiv 2602.10016), Q = S.
    """

    def __init__(self, width: int, heads: int, form: Pointwise) -> None:
        super().__init__()
        self.heads, self.form = heads, form
        self.key_value = nn.Linear(width, 2 * width)

    def forward(self, events: Tensor, offsets: Tensor, summary: Tensor) -> Tensor:
        """[T, D], [B + 1] and [B, n_sum, D] → [T, D]."""
        keys, values = self.key_value(summary).flatten(0, 1).unflatten(1, (2 * self.heads, -1)).chunk(2, dim=1)
        places = torch.arange(len(offsets), device=offsets.device) * summary.shape[1]
        return gdpa(events.unflatten(1, (self.heads, -1)), keys, values, offsets, places, form=self.form).flatten(1)


class InterFormerLayer(nn.Module):
    """One round: tokens → events → tokens.

    X_sum = Gate(LCE(X)), S_sum = Gate([first `num_cls` events ; pooled ; last `num_recent` events]),
    X' = interaction([X ; S_sum]), S' = attention(LN(S + personal(S, X_sum))).

    Everything is a request's; candidates meet the result later. Parts are passed in:

    - `interaction`: [B, n + S tokens, D] → [B, n', D], such as a `WukongLayer`;
    - `attention`: (events, offsets, ages) → events with its own residual, such as an `HstuLayer`, windowed or not;
    - `personal`: one of the three PFFN forms, or None;
    - `pooling`: (events, offsets) → [B, `pooling.num_tokens`, D], or None to use the summary of the layer before.

    Kunlun's compute-skip is every second layer with `personal=None`, `pooling=None` and a windowed attention.

    Source: InterFormer (arXiv 2411.09852), Kunlun (arXiv 2602.10016). The norm stands between PFFN and attention, since
    the attention brings its own residual (ours).
    """

    def __init__(
        self,
        width: int,
        *,
        interaction: nn.Module,
        attention: nn.Module,
        summary: TokenSummary | None = None,
        personal: PersonalVector | PersonalMatrix | PersonalAttention | None = None,
        pooling: nn.Module | None = None,
        num_cls: int = 0,
        num_recent: int = 0,
    ) -> None:
        super().__init__()
        assert (summary is None) == (personal is None), "X_sum is what personalises"
        self.interaction, self.attention, self.pooling = interaction, attention, pooling
        self.summary, self.personal = summary, personal
        self.num_cls, self.num_recent = num_cls, num_recent
        self.gate = TokenGate(width) if pooling is not None else None
        self.norm = nn.LayerNorm(width) if personal is not None else None

    def forward(
        self, x: Tensor, events: Tensor, offsets: Tensor, seen: Tensor | None = None, ages_days: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One round.

        Args:
            x: [B, n, D] tokens of the requests.
            events: [T, D].
            offsets: [B + 1] int64 of the histories.
            seen: [B, S tokens, D], S_sum of the layer before; read only without a pooling of its own.
            ages_days: [T], for an attention that turns its queries and keys by them.

        Returns:
            ([B, n', D] tokens, [T, D] events, [B, S tokens, D] S_sum).
        """
        if self.pooling is not None and self.gate is not None:
            first, last = edges(events, offsets, num_first=self.num_cls, num_last=self.num_recent)
            seen = self.gate(torch.cat([first, self.pooling(events, offsets), last], dim=1))
        assert seen is not None, "a layer without pooling follows one that has it"
        if self.summary is not None and self.personal is not None and self.norm is not None:
            events = self.norm(events + self.personal(events, offsets, self.summary(x)))
        return self.interaction(torch.cat([x, seen], dim=1)), self.attention(events, offsets, ages_days), seen


def edges(events: Tensor, offsets: Tensor, *, num_first: int, num_last: int) -> tuple[Tensor, Tensor]:
    """The oldest and the newest events of each history: [B, num_first, D], [B, num_last, D], zeros where it is shorter.

    The newest stand last.
    """
    rows = with_zero_row(events)
    start, end = offsets[:-1].unsqueeze(1), offsets[1:].unsqueeze(1)
    first = start + torch.arange(num_first, device=offsets.device)
    last = end - num_last + torch.arange(num_last, device=offsets.device)
    first, last = torch.where(first < end, first, len(events)), torch.where(last >= start, last, len(events))
    return gather_padded(rows, first), gather_padded(rows, last)


def prepend(tokens: Tensor, events: Events) -> Events:
    """Put [B, c, D] tokens in front of each history: the CLS tokens, before the first layer; their age is 0."""
    num_requests, count, _ = tokens.shape
    offsets = events.offsets
    longer = offsets + count * torch.arange(num_requests + 1, device=offsets.device)
    places = longer[:-1].unsqueeze(1) + torch.arange(count, device=offsets.device)
    is_event = torch.ones(len(events.tokens) + num_requests * count, dtype=torch.bool, device=offsets.device)
    is_event[places.flatten()] = False
    order = torch.cat([is_event.nonzero().squeeze(1), places.flatten()])
    joined = torch.cat([events.tokens, tokens.flatten(0, 1)])
    ages = torch.cat([events.ages_days, events.ages_days.new_zeros(num_requests * count)])
    return Events(
        joined.new_zeros(joined.shape).index_copy(0, order, joined),
        longer,
        ages.new_zeros(ages.shape).index_copy(0, order, ages),
    )


def _mlp(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))
