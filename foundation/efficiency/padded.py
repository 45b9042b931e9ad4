"""A history encoder over histories padded to the longest: what jagged computation is compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from foundation.model.gdpa import pointwise
from foundation.model.hstu import HstuLayer


def padded_forward(layer: HstuLayer, x: Tensor, is_event: Tensor) -> Tensor:
    """`HstuLayer` in plain torch operators, as one writes it for rectangles; for SiLU, without a window.

    Args:
        layer: its parameters and form.
        x: [B, L, D], anything where padded.
        is_event: [B, L] bool.

    Returns:
        [B, L, D]; meaningless where padded.
    """
    assert layer.form.activation == "silu", layer.form
    assert layer.form.window is None, layer.form
    u, *vqk = functional.silu(layer.uvqk(layer.norm(x))).chunk(4, dim=2)
    v, q, k = (part.unflatten(2, (layer.heads, -1)).transpose(1, 2) for part in vqk)
    weights = functional.silu(q @ k.transpose(2, 3) * layer.form.scale_in) * layer.form.scale_out
    attended = (weights * is_event[:, None, None, :]) @ v
    return layer.out(layer.attended_norm(attended.transpose(1, 2).flatten(2)) * u) + x


def encoder_variants(lengths: Tensor, *, width: int, heads: int) -> dict[str, Callable[[], None]]:
    """Forward and backward of one HSTU layer over the same histories, three times.

    `jagged`: our layer; `padded`: the same in plain torch, every history as long as the longest; `padded, our kernel`:
    our layer over such histories.

    Args:
        lengths: [B] int64 events, at least one above 0.
        width: D.
        heads: of attention.
    """
    longest = int(lengths.max())
    layer = HstuLayer(width, heads, pointwise(width // heads, longest))
    is_event = torch.arange(longest) < lengths[:, None]
    rows = torch.randn(len(lengths), longest, width)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    even = torch.arange(len(lengths) + 1) * longest

    def learn(forward: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], None]:
        def run() -> None:
            forward(x.detach().requires_grad_()).sum().backward()
            layer.zero_grad()

        return run

    return {
        "padded": learn(lambda x: padded_forward(layer, x, is_event), rows),
        "padded, our kernel": learn(lambda x: layer(x, even), rows.flatten(0, 1)),
        "jagged": learn(lambda x: layer(x, offsets), rows[is_event]),
    }
