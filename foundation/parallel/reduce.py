"""Small values that all ranks agree on; without a process group, or alone in it, they are one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def mean_over_ranks(values: Tensor) -> Tensor:
    """The mean of each element over the ranks; no gradient goes through.

    Example:
        >>> mean_over_ranks(torch.tensor([3, 4])).tolist()
        [3, 4]
    """
    if not _has_peers():
        return values
    total = values.detach().double()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).to(torch.float32)


def any_of_ranks(values: tuple[bool, ...], device: torch.device) -> tuple[bool, ...]:
    """Whether each is true on at least one rank.

    Example:
        >>> any_of_ranks((True, False), torch.device("cpu"))
        (True, False)
    """
    if not _has_peers():
        return values
    found = torch.tensor(values, dtype=torch.float32, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return tuple(value > 0 for value in found.tolist())


def of_all_ranks(value: Any) -> list[Any]:
    """What each rank holds, by rank; any picklable value, for rare use.

    Example:
        >>> of_all_ranks(3)
        [3]
    """
    if not _has_peers():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def of_first_rank(make: Callable[[], T]) -> T:
    """What the first rank makes, on every rank; any picklable value, for rare use.

    Example:
        >>> of_first_rank(lambda: 3)
        3
    """
    if not _has_peers():
        return make()
    values = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(values, src=0)
    return cast("T", values[0])


def _has_peers() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1
