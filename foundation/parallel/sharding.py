"""Spreads a model over the ranks: tables by TorchRec, in one copy or several; the dense part by DDP, or by HSDP."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchrec.distributed.model_parallel import (
    DataParallelWrapper,
    DefaultDataParallelWrapper,
    DistributedModelParallel,
    DMPCollection,
)
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingEnv2D

from foundation.config import ParallelConfig
from foundation.model.embedding import TableModel, module_name
from foundation.parallel.mesh import REPLICATE, SHARD, Meshes, meshes
from foundation.parallel.plan import move_to_group, sharder, sharding_plan, table_plan
from foundation.parallel.plan_cache import TablePlan
from foundation.parallel.shards import Shard, local_shards
from foundation.parallel.table_rows import first_rows
from foundation.parallel.world import World

EPSILON = 1e-8
MIN_SHARDED = 2**14
"""Parameters of a block that is worth gathering for every pass; smaller ones stay whole on every rank."""


@dataclass(frozen=True, slots=True)
class TableOptimizer:
    """What tables learn by, fused into the backward pass.

    Attributes:
        kind: `adagrad` is row-wise AdaGrad.
    """

    learning_rate: float
    kind: Literal["adagrad", "sgd"] = "adagrad"

    def scale(self, num_copies: int) -> float:
        """What learning rate and epsilon are multiplied by where so many copies of the tables are averaged.

        A copy's AdaGrad sums squares of a gradient that is the mean over fewer rows, and so grows about `num_copies`
        times faster; `lr * sqrt(M) / (sqrt(v) + eps * sqrt(M))` is `lr / (sqrt(v / M) + eps)`.

        Source: arXiv 2508.03854, momentum-scaled row-wise AdaGrad.
        """
        return num_copies**0.5 if self.kind == "adagrad" else 1.0

    def fused(self, scale: float) -> dict[str, Any]:
        """In FBGEMM's terms, both scaled.

        `apply_optimizer_in_backward` would do the same, and have torch.distributed.optim compile eight optimizers that
        nobody asked for, a third of a second of each start.
        """
        rate = {"learning_rate": self.learning_rate * scale}
        if self.kind == "sgd":
            return {"optimizer": EmbOptimType.EXACT_SGD, **rate}
        return {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "eps": EPSILON * scale, **rate}


@dataclass(frozen=True, slots=True)
class Spread:
    """How a model was spread, for people and checkpoints.

    Attributes:
        sharding_group: ranks that share one copy of the tables.
        dense_shard: ranks that share one copy of the dense part's large blocks.
        tables: where each table is, as `foundation.parallel.tables` of the project file would say it.
    """

    num_ranks: int
    sharding_group: int
    dense_shard: int
    tables: dict[str, dict[str, Any]]

    @property
    def num_table_copies(self) -> int:
        """M, groups of ranks with all tables each."""
        return self.num_ranks // self.sharding_group


@dataclass(frozen=True, slots=True)
class ShardedModel:
    """A model that is spread over the ranks.

    Attributes:
        parallel: what is called for the dense part, with a `LookedUp`; it has all parameters.
        model: the same without what spreads it, to look rows up with.
        plan: where each table is.
        table_rate_scale: see `TableOptimizer.scale`.
        average_copies: to be called after each learning step, of all ranks together; None for one copy of the tables.
    """

    parallel: DistributedModelParallel
    model: TableModel
    plan: TablePlan
    meshes: Meshes
    table_rate_scale: float
    average_copies: Callable[[], None] | None

    @property
    def spread(self) -> Spread:
        """What was decided."""
        return Spread(
            num_ranks=self.meshes.tables.size(),
            sharding_group=self.meshes.table_group_size,
            dense_shard=self.meshes.dense_group_size,
            tables={table: placement.model_dump(mode="json") for table, placement in self.plan.items()},
        )


def shard(
    model: TableModel,
    world: World,
    config: ParallelConfig,
    *,
    optimizer: TableOptimizer,
    matmul: torch.dtype,
    plans: Path | None = None,
) -> ShardedModel:
    """Give the model's tables memory, rank by rank, their first rows, and their optimizer; spread the dense part.

    Rows are drawn from torch's initial seed.

    Args:
        model: dense parameters in memory, the same on every rank; its tables on the meta device.
        world: the ranks to spread over.
        config: how.
        optimizer: of the tables.
        matmul: type of matrix products; what is gathered for them has it too.
        plans: folder that keeps plans from start to start.
    """
    groups = meshes(world, config)
    scale = optimizer.scale(groups.num_table_copies)
    plan = table_plan(
        model,
        config.tables,
        group_size=groups.table_group_size,
        device_type=world.device.type,
        remembered_in=plans,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = sharder(optimizer.fused(scale))
        parallel = _spread(model, world, plan, groups, sharder=tables, wrapper=_DensePart(groups, matmul))
    for place in local_shards(parallel.state_dict()):
        _fill(place, torch.initial_seed())
    average: Callable[[], None] | None = None
    if groups.num_table_copies > 1:
        average = parallel.sync if isinstance(parallel, DMPCollection) else _average_over(groups, parallel)
    return ShardedModel(parallel, model, plan, groups, scale, average)


def _spread(
    model: TableModel,
    world: World,
    plan: TablePlan,
    groups: Meshes,
    *,
    sharder: ModuleSharder[nn.Module],
    wrapper: DataParallelWrapper,
) -> DistributedModelParallel:
    """TorchRec's classes around the model; for several copies on a CPU, what `DMPCollection` does on CUDA."""
    everyone = dist.group.WORLD
    assert everyone is not None, "joined_world makes the group"
    device, size, copies = world.device, groups.table_group_size, groups.num_table_copies
    found = sharding_plan(model, plan, group_size=size, device_type=device.type)
    common: dict[str, Any] = {"device": device, "sharders": [sharder], "data_parallel_wrapper": wrapper}
    if copies > 1 and device.type == "cuda":
        return DMPCollection(
            model, plan=found, world_size=world.size, sharding_group_size=size, global_pg=everyone, **common
        )
    env = ShardingEnv.from_process_group(everyone)
    if copies > 1:
        move_to_group(found, world.rank % copies, copies, device_type=device.type)
        mesh = groups.tables
        env = ShardingEnv2D(
            sharding_pg=mesh.get_group(SHARD),
            replica_pg=mesh.get_group(REPLICATE),
            global_pg=everyone,
            device_mesh=mesh,
        )
    return DistributedModelParallel(model, env=env, plan=found, **common)


class _DensePart(DataParallelWrapper):
    """DDP over all ranks for what is whole on each, after `fully_shard` of the large blocks, if they are shared."""

    def __init__(self, groups: Meshes, matmul: torch.dtype) -> None:
        self._groups, self._matmul = groups, matmul

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """See TorchRec's `DataParallelWrapper`."""
        model = cast("TableModel", dmp.module)
        sharded: set[int] = set()
        for block in model.blocks() if self._groups.dense_group_size > 1 else ():
            parameters = list(block.parameters())
            if sum(parameter.numel() for parameter in parameters) >= MIN_SHARDED:
                low = self._matmul != torch.float32
                # Inputs are cast by autocast, where it wants to; what is gathered need not be wider than it is used.
                policy = MixedPrecisionPolicy(
                    param_dtype=self._matmul if low else None,
                    reduce_dtype=torch.float32 if low else None,
                    cast_forward_inputs=False,
                )
                # Not kept gathered after a pass: scores may be of other parameters than the next pass learns.
                fully_shard(block, mesh=self._groups.dense, mp_policy=policy, reshard_after_forward=True)
                sharded.update(id(module) for module in block.modules())
        names = [
            f"{prefix}.{name}"
            for prefix, module in model.named_modules()
            if id(module) in sharded
            for name, _ in module.named_parameters(recurse=False)
        ]
        DefaultDataParallelWrapper(params_to_ignore=names).wrap(dmp, env, device)


def _fill(place: Shard, seed: int) -> None:
    """A shard's part of its table's first rows."""
    table = place.name.removesuffix(".weight").rpartition(".")[2].removeprefix(module_name(""))
    rows, columns = place.offsets
    drawn = first_rows(table, seed, first=rows, num=place.tensor.shape[0], width=place.shape[1])
    with torch.no_grad():
        place.tensor.copy_(drawn[:, columns : columns + place.tensor.shape[1]])


def _average_over(groups: Meshes, parallel: DistributedModelParallel) -> Callable[[], None]:
    """The mean over copies of all rows and all AdaGrad sums, as `DMPCollection.sync` takes it; gloo has no mean."""
    group, copies = groups.tables.get_group(REPLICATE), groups.num_table_copies
    values = dict(parallel.state_dict())
    for table, state in parallel.fused_optimizer.state_dict()["state"].items():
        values |= {f"{table}.{name}": value for name, value in state.items()}
    tensors: list[Tensor] = [place.tensor for place in local_shards(values)]

    def average() -> None:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
            tensor.div_(copies)

    return average
