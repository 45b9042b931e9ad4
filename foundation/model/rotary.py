"""Time and place in a history: rotary embedding on the position or on the logarithm of the age, and an age encoding."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

RotaryOn = Literal["position", "log_age"]


def positions_of(offsets: Tensor) -> Tensor:
    """[T] int64: how many events of the same request are newer, 0 for the newest.

    Counted from the request, so that an older event that falls off a history moves no other.

    Example:
        >>> positions_of(torch.tensor([0, 2, 2, 5])).tolist()
        [1, 0, 2, 1, 0]
    """
    counts = offsets.diff()
    return offsets[1:].repeat_interleave(counts) - 1 - torch.arange(int(offsets[-1]), device=offsets.device)


class Rotary(nn.Module):
    """Turns pairs of features by an angle that grows with an event's position or log age.

    The product of a turned query and a turned key depends on the difference of their angles only. With `position` that
    is how many events lie between; with `log_age`, `phase = ln(1 + age / scale)`, it is the ratio of their ages.
    Frequencies are `base^(-2 i / d)`, from 1 down; features i and i + d / 2 are a pair. Log ages span about 10, so
    `resolution` multiplies them before the angles are taken.

    Source: RoFormer (arXiv 2104.09864); on log time: ROTE of Kunlun (arXiv 2602.10016). The resolution is ours.
    """

    frequencies: Tensor

    def __init__(
        self,
        head_width: int,
        *,
        on: RotaryOn = "position",
        base: float = 10_000.0,
        scale_days: float = 1 / 24,
        resolution: float = 8.0,
    ) -> None:
        super().__init__()
        assert head_width % 2 == 0, "features are turned in pairs"
        self.on, self.scale_days, self.resolution = on, scale_days, resolution
        steps = torch.arange(head_width // 2, dtype=torch.float64) / (head_width // 2)
        self.register_buffer("frequencies", base**-steps, persistent=False)

    def phases(self, offsets: Tensor, ages_days: Tensor) -> Tensor:
        """[B + 1] offsets and [T] ages of the events → [T], what `forward` turns by."""
        if self.on == "position":
            return positions_of(offsets).to(ages_days.dtype)
        return self.resolution * torch.log1p(ages_days / self.scale_days)

    def forward(self, x: Tensor, phases: Tensor) -> Tensor:
        """[T, H, d] and [T] → [T, H, d], lengths unchanged."""
        angles = (phases.double().unsqueeze(1) * self.frequencies.double()).unsqueeze(1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=2)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=2)


class LogGapEncoding(nn.Module):
    """A learned vector for the logarithm of a time gap, interpolated between its two neighbours in a table.

    One place of the table a doubling of `1 + gap / scale`; unlike buckets it has no jumps. Gaps beyond the last place
    have its vector.

    Source: ours; the relative time bias of HSTU (arXiv 2402.17152) has the same logarithmic buckets.
    """

    def __init__(self, width: int, *, num_places: int = 24, scale_days: float = 1 / 1440) -> None:
        super().__init__()
        self.scale_days = scale_days
        self.table = nn.Embedding(num_places, width)
        nn.init.normal_(self.table.weight, std=0.05)

    def forward(self, gaps_days: Tensor) -> Tensor:
        """[T] gaps, 0 or above → [T, D]."""
        last = self.table.num_embeddings - 1
        place = torch.log2(1 + gaps_days / self.scale_days).clamp(max=last)
        below = place.floor().clamp(max=last - 1)
        share = (place - below).unsqueeze(1).to(self.table.weight.dtype)
        below = below.long()
        return torch.lerp(self.table(below), self.table(below + 1), share)
