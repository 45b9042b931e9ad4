"""The parts of sharded tensors that this rank holds, whichever class says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.tensor import DTensor
from torchrec.distributed.shards_wrapper import LocalShardsWrapper


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a table, or of its optimizer's state.

    Attributes:
        name: of the whole.
        tensor: this rank's part; it shares the memory.
        offsets: where it begins in the whole.
        shape: of the whole.
    """

    name: str
    tensor: Tensor
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def local_shards(values: Mapping[str, Any]) -> Iterator[Shard]:
    """This rank's parts of what TorchRec spreads over ranks; nothing of other tensors.

    TorchRec 1.8 has `ShardedTensor`s where tables have one copy, and DTensors of `LocalShardsWrapper`s where more.
    """
    for name, value in values.items():
        if isinstance(value, ShardedTensor):
            for found in value.local_shards():
                yield Shard(name, found.tensor, tuple(found.metadata.shard_offsets), tuple(value.metadata().size))
        elif isinstance(value, DTensor) and isinstance(parts := value.to_local(), LocalShardsWrapper):
            for tensor, offsets in zip(parts.local_shards(), parts.local_offsets(), strict=True):
                yield Shard(name, tensor, tuple(offsets), tuple(value.shape))


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that `fully_shard` has cut; of others the tensor itself.

    Example:
        >>> import torch
        >>> whole = torch.ones(2)
        >>> local_part(whole) is whole
        True
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
