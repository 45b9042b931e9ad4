"""A model's parameters in one piece, whatever the ranks they are spread over."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor


def full_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer on the CPU, whole, by name; on ranks other than the first the tables are empty."""
    return {name: _whole(value) for name, value in model.state_dict().items()}


def _whole(value: Tensor | ShardedTensor) -> Tensor:
    if not isinstance(value, ShardedTensor):
        return value.detach().cpu().contiguous()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use DTensor", FutureWarning)  # TorchRec still hands these out
        out = torch.empty(value.size()) if dist.get_rank() == 0 else None
        value.gather(dst=0, out=out)
    return out if out is not None else torch.empty(0)
