"""A model's tensors out of the ranks they are spread over: in one piece, or each rank's share as a copy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor


def full_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer on the CPU, whole, by name; on ranks other than the first the tables are empty."""
    return {name: _whole(value) for name, value in model.state_dict().items()}


def own_copy(value: Tensor | ShardedTensor, into: Tensor | None = None) -> Tensor | ShardedTensor:
    """In memory of its own, on the CPU, sharded as before; torch's own stager does not know TorchRec's tensors.

    `into` is an earlier copy of the same tensor, which is changed: new memory takes many times as long as the copying.
    """
    with torch.no_grad(), _of_sharded_tensors():
        if isinstance(value, ShardedTensor):
            if not isinstance(into, ShardedTensor):
                return copy.deepcopy(value).cpu()
            for own, other in zip(into.local_shards(), value.local_shards(), strict=True):
                own.tensor.copy_(other.tensor)
            return into
        return value.detach().to("cpu", copy=True) if into is None else into.copy_(value)


def _whole(value: Tensor | ShardedTensor) -> Tensor:
    if not isinstance(value, ShardedTensor):
        return value.detach().cpu().contiguous()
    with _of_sharded_tensors():
        out = torch.empty(value.size()) if dist.get_rank() == 0 else None
        value.gather(dst=0, out=out)
    return out if out is not None else torch.empty(0)


@contextmanager
def _of_sharded_tensors() -> Iterator[None]:
    """Without torch's advice to use DTensor, which is TorchRec's to take."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use DTensor", FutureWarning)
        yield
