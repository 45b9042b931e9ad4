"""Generalised dot-product attention over jagged rows: an activation in place of the softmax, no padding."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from foundation.kernels.activation import Activation, Pointwise
from foundation.kernels.gdpa_cpu import GdpaCpu

ScalePlace = Literal["inside", "outside"]


def gdpa(q: Tensor, k: Tensor, v: Tensor, query_offsets: Tensor, key_offsets: Tensor, *, form: Pointwise) -> Tensor:
    """`act(scale_in · q kᵀ) · scale_out · v`, each query over the keys of its own request.

    One function for a history over itself (both offsets the history's), candidates over a history, events over a few
    summary tokens, and seeds over a history (`arange(B + 1) * n` for n rows a request).

    Args:
        q: [Q, H, d] of H heads, floating point; may be a view whose last dimension is contiguous, as k and v may.
        k: [T, H, d].
        v: [T, H, e].
        query_offsets: [B + 1] int64 of the queries, from 0 to Q.
        key_offsets: [B + 1] int64 of the keys, from 0 to T; with a window the same as the queries'.
        form: activation, scales and window. What lies beyond a window is not computed.

    Returns:
        [Q, H, e]; zeros where a request has no key. Differentiable once, in q, k and v.

    Example:
        >>> import torch
        >>> one, two = torch.tensor([0, 1]), torch.tensor([0, 2])
        >>> q, k, v = torch.ones(1, 1, 1), torch.tensor([[[2.0]], [[-3.0]]]), torch.ones(2, 1, 1)
        >>> gdpa(q, k, v, one, two, form=Pointwise("relu", scale_out=0.5)).item()
        1.0

    Source: facebookresearch/ads_model_kernel_library, `gdpa`.
    """
    device = q.device.type
    if torch.is_autocast_enabled(device):  # the CPU's tiles add up in the type of their rows, the GPU's in float32
        q, k, v = (x.to(torch.get_autocast_dtype(device) if q.is_cuda else torch.float32) for x in (q, k, v))
    with torch.autocast(device, enabled=False):
        if q.is_cuda:
            from foundation.kernels.gdpa_triton import GdpaTriton

            return GdpaTriton.apply(q, k, v, query_offsets, key_offsets, form)
        return GdpaCpu.apply(q, k, v, query_offsets, key_offsets, form)


def pointwise(
    head_width: int,
    num_positions: int,
    *,
    activation: Activation = "silu",
    scale: ScalePlace = "outside",
    window: int | None = None,
) -> Pointwise:
    """The form with `1/sqrt(d)` inside the activation, and 1/N inside or outside it.

    Args:
        head_width: d.
        num_positions: N, a constant of the model: the longest history.
        activation: in place of a softmax.
        scale: where 1/N stands. The same for `identity` and `relu`, not for the others.
        window: see `Pointwise`.

    Example:
        >>> pointwise(4, 10, scale="inside")
        Pointwise(activation='silu', scale_in=0.05, scale_out=1.0, window=None)

    Source: outside as HSTU (arXiv 2402.17152) and the GDPA kernel, inside as Kunlun (arXiv 2602.10016).
    """
    dots = head_width**-0.5
    scale_in, scale_out = (dots / num_positions, 1.0) if scale == "inside" else (dots, 1 / num_positions)
    return Pointwise(activation, scale_in, scale_out, window)
