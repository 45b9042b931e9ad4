"""Clipping a gradient that lies on several ranks by its norm as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from foundation.parallel.mesh import SHARD, Meshes
from foundation.parallel.shards import local_part


def clip_together(parameters: Sequence[nn.Parameter], most: float, groups: Meshes) -> Tensor:
    """Scale gradients in place so that their norm together is at most `most`.

    The squares of what is cut are summed over the ranks that share it; what every rank has whole counts once.

    Returns:
        The norm before, a scalar; the same on all ranks.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    whole = [p for p in with_gradient if local_part(p) is p]
    cut = [p for p in with_gradient if local_part(p) is not p]
    norm = nn.utils.get_total_norm([p.grad for p in whole if p.grad is not None])
    if groups.dense_group_size > 1:
        parts = [local_part(p.grad) for p in cut if p.grad is not None]
        squares = nn.utils.get_total_norm(parts).square() if parts else torch.zeros_like(norm)
        dist.all_reduce(squares, group=groups.dense.get_group(SHARD))
        norm = (norm.square() + squares).sqrt()
    for kind in (whole, cut):
        nn.utils.clip_grads_with_norm_(kind, most, norm)
    return norm
