"""Attention over jagged rows on a CPU: tile by tile, with scores that are made again for the way back, never kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from foundation.kernels.activation import Pointwise, activate_, pull_back_
from foundation.kernels.tiles import Tile, tiles_of


class GdpaCpu(torch.autograd.Function):
    """`act(scale_in · q kᵀ) · scale_out · v` within each request; see `foundation.model.gdpa.gdpa`."""

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
        tiles = tiles_of(query_offsets, key_offsets, heads=q.shape[1], head_width=q.shape[2], window=form.window)
        out = q.new_zeros((*q.shape[:2], v.shape[2]))
        for tile in tiles:
            scores = _scores(_rows(q, tile.queries), _rows(k, tile.keys), tile, scale=form.scale_in)
            _add(out, tile.queries, activate_(scores, form.activation), _rows(v, tile.keys), scale=form.scale_out)
        ctx.save_for_backward(q, k, v)
        ctx.plan = tiles, form
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of q, k, v: as their shapes."""
        q, k, v = ctx.saved_tensors
        tiles, form = ctx.plan
        gradient = gradient.contiguous()
        dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
        for tile in tiles:
            asking, answering = _rows(q, tile.queries), _rows(k, tile.keys)
            out = _rows(gradient, tile.queries)
            scores = _scores(asking, answering, tile, scale=form.scale_in)
            back = _scores(out, _rows(v, tile.keys), tile, scale=form.scale_out)
            pull_back_(back, scores, form.activation)
            _add(dv, tile.keys, activate_(scores, form.activation).transpose(1, 2), out, scale=form.scale_out)
            _add(dq, tile.queries, back, answering, scale=form.scale_in)
            _add(dk, tile.keys, back.transpose(1, 2), asking, scale=form.scale_in)
        return dq, dk, dv, None, None, None


def _rows(flat: Tensor, places: slice | Tensor) -> Tensor:
    """[N, H, d] → [b · H, M, d]: a view of one request's rows; a copy of several's, zeros where padded."""
    if isinstance(places, slice):
        return flat[places].transpose(0, 1)
    taken = flat.index_select(0, places.clamp(min=0).flatten())
    taken[(places < 0).flatten()] = 0
    return taken.unflatten(0, places.shape).transpose(1, 2).flatten(0, 1)


def _scores(left: Tensor, right: Tensor, tile: Tile, *, scale: float) -> Tensor:
    """[b · H, M, L]: `scale · left rightᵀ`, zeros beyond the band."""
    scores = left.new_empty((left.shape[0], left.shape[1], right.shape[1]))
    scores.baddbmm_(left, right.transpose(1, 2), beta=0, alpha=scale)
    return scores if tile.band is None else scores.triu_(tile.band[0]).tril_(tile.band[1])


def _add(flat: Tensor, places: slice | Tensor, left: Tensor, right: Tensor, *, scale: float) -> None:
    """`flat[places] += scale · left right`."""
    if isinstance(places, slice):
        flat[places].transpose(0, 1).baddbmm_(left, right, alpha=scale)
        return
    part = (left @ right).unflatten(0, (len(places), -1)).transpose(1, 2).flatten(0, 1)
    there = (places >= 0).flatten()
    flat.index_add_(0, places.flatten()[there], part[there], alpha=scale)
