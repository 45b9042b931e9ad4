"""Who shares what: sharding groups of the tables, and sharding groups of the dense part."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh

from foundation.config import ParallelConfig
from foundation.parallel.world import World
from serving.errors import Problem, ProjectError

REPLICATE, SHARD = "replicate", "shard"


@dataclass(frozen=True, slots=True)
class Meshes:
    """Two ways to see the same ranks, each [copies, ranks that share one] with dimensions `replicate` and `shard`.

    Attributes:
        tables: strided: copies of a shard are neighbours, on one node as long as there are no more than its ranks.
        dense: consecutive ranks share, as what they gather and scatter at every step is more than copies reduce.
    """

    tables: DeviceMesh
    dense: DeviceMesh

    @property
    def num_table_copies(self) -> int:
        """M, groups of ranks with all tables each."""
        return self.tables.size(0)

    @property
    def table_group_size(self) -> int:
        """N, ranks that share one copy of the tables."""
        return self.tables.size(1)

    @property
    def dense_group_size(self) -> int:
        """Ranks that share one copy of the dense part's blocks."""
        return self.dense.size(1)


def meshes(world: World, config: ParallelConfig) -> Meshes:
    """The meshes of a job; of all ranks together, since they make process groups.

    Raises:
        ProjectError: a group's size does not divide the number of ranks.
    """
    tables = _size("sharding_group", config.sharding_group or world.size, world)
    dense = _size("dense_shard", config.dense_shard, world)
    return Meshes(
        tables=_mesh(strided_groups(world.size, tables), world),
        dense=_mesh([list(range(first, first + dense)) for first in range(0, world.size, dense)], world),
    )


def strided_groups(world_size: int, group_size: int) -> list[list[int]]:
    """The ranks of each sharding group of the tables.

    Example:
        >>> strided_groups(8, 4)
        [[0, 2, 4, 6], [1, 3, 5, 7]]

    Source: TorchRec's `DMPCollection`, with all-reduce within the host.
    """
    num_groups = world_size // group_size
    return [list(range(group, world_size, num_groups)) for group in range(num_groups)]


def _mesh(groups: list[list[int]], world: World) -> DeviceMesh:
    return DeviceMesh(world.device.type, groups, mesh_dim_names=(REPLICATE, SHARD))


def _size(name: str, asked: int, world: World) -> int:
    size = min(asked, world.size)
    if world.size % size:
        where, expected = f"project file: foundation.parallel.{name}", f"a number that divides {world.size} ranks"
        fitting = ", ".join(str(n) for n in range(1, world.size + 1) if world.size % n == 0)
        raise ProjectError(Problem(where, expected, str(asked), f"Take one of {fitting}, or start other ranks."))
    return size
