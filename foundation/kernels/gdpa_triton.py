"""Attention over jagged rows on a GPU: one Triton program a request, head and block of rows.

The way back makes the scores again, once by blocks of queries for dQ and once by blocks of keys for dK and dV, so that
no two programs write one row and sums come in one order: a run is repeatable.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from foundation.kernels.activation import Pointwise
from foundation.kernels.gdpa_kernels import backward_keys, backward_queries, forward


class GdpaTriton(torch.autograd.Function):
    """`act(scale_in · q kᵀ) · scale_out · v` within each request; see `foundation.model.gdpa.gdpa`.

    Sums are in float32, of float64 rows in float64. Float32 rows are multiplied as TF32 only where torch may do so too
    (`torch.backends.cuda.matmul.allow_tf32`).

    Source: ours; the order of work of FlashAttention-2 (arXiv 2307.08691, section 3.1) without its softmax.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd hands over by position)
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_offsets: Tensor,
        key_offsets: Tensor,
        form: Pointwise,
    ) -> Tensor:
        """[Q, H, e]."""
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = q.new_empty((*q.shape[:2], v.shape[2]))
        launch = Launch(q, v, query_offsets, key_offsets, form)
        launch.by_queries(forward, q, k, v, out)
        ctx.save_for_backward(q, k, v)
        ctx.launch = launch
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of q, k, v: as their shapes."""
        q, k, v = ctx.saved_tensors
        gradient = gradient.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        ctx.launch.by_queries(backward_queries, q, k, v, gradient, dq)
        ctx.launch.by_keys(backward_keys, q, k, v, gradient, dk, dv)
        return dq, dk, dv, None, None, None


class Launch:
    """What every kernel is told of a batch, and the grids: blocks of rows by heads, made without asking the GPU."""

    def __init__(self, q: Tensor, v: Tensor, query_offsets: Tensor, key_offsets: Tensor, form: Pointwise) -> None:
        (num_queries, heads, key_width), (num_keys, _, value_width) = q.shape, v.shape
        small = max(key_width, value_width) <= 64 and q.element_size() <= 4
        block = 64 if small else 32  # rows that a program holds at a time: they must fit in shared memory
        self.grids = _blocks(query_offsets, num_queries, block), _blocks(key_offsets, num_keys, block)
        self.offsets = query_offsets, key_offsets
        self.constants: dict[str, Any] = {
            "HEADS": heads,
            "KEY_WIDTH": key_width,
            "VALUE_WIDTH": value_width,
            "KEY_SPAN": max(16, triton.next_power_of_2(key_width)),
            "VALUE_SPAN": max(16, triton.next_power_of_2(value_width)),
            "ACTIVATION": form.activation,
            "SCALE_IN": form.scale_in,
            "SCALE_OUT": form.scale_out,
            "WINDOW": -1 if form.window is None else form.window,
            "BLOCK": block,
            "SUM": tl.float64 if q.dtype == torch.float64 else tl.float32,
            "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
            "num_stages": 2,
        }

    def by_queries(self, kernel: Any, *tensors: Tensor) -> None:
        """One program a block of queries and head."""
        self._run(kernel, self.grids[0], tensors)

    def by_keys(self, kernel: Any, *tensors: Tensor) -> None:
        """One program a block of keys and head."""
        self._run(kernel, self.grids[1], tensors)

    def _run(self, kernel: Any, blocks: tuple[Tensor, Tensor], tensors: tuple[Tensor, ...]) -> None:
        requests, starts = blocks
        num_requests = len(self.offsets[0]) - 1
        if len(requests):
            grid = (len(requests), self.constants["HEADS"])
            kernel[grid](*tensors, requests, starts, *self.offsets, num_requests, **self.constants)


def _blocks(offsets: Tensor, num_rows: int, block: int) -> tuple[Tensor, Tensor]:
    """(request, first row within it) of every block of rows; of no request for the rest of what any such batch has.

    Example:
        >>> [part.tolist() for part in _blocks(torch.tensor([0, 3, 3, 7]), 7, 4)]
        [[0, 2, 3, 3], [0, 0, 4, 8]]
    """
    num_requests = len(offsets) - 1
    each = (offsets.diff() + block - 1) // block
    ends = each.cumsum(0)
    places = torch.arange(num_rows // block + num_requests if num_rows else 0, device=offsets.device)
    requests = torch.searchsorted(ends, places, right=True)
    return requests, (places - (ends - each)[requests.clamp(max=num_requests - 1)]) * block
