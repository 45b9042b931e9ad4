"""Spreads a model over the ranks: TorchRec's planner and DistributedModelParallel; the tables learn in the backward."""

from __future__ import annotations

import warnings
from typing import cast

import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder, ShardingType
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from foundation.parallel.world import World

EPSILON = 1e-8
WHOLE_ROWS = [ShardingType.ROW_WISE.value, ShardingType.TABLE_WISE.value]
"""A row's step depends on its whole gradient, and so must not be split; then any number of ranks learns the same."""


def shard(model: nn.Module, world: World, *, table_learning_rate: float) -> DistributedModelParallel:
    """Give the model's tables memory, rank by rank, and their optimizer.

    Args:
        model: dense parameters in memory, `EmbeddingCollection`s on the meta device.
        world: the ranks to spread over.
        table_learning_rate: of the tables' row-wise AdaGrad.

    Returns:
        The model to call; its `fused_optimizer` holds the tables' optimizer state.
    """
    collections = [module for module in model.modules() if isinstance(module, EmbeddingCollection)]
    for collection in collections:
        settings = {"lr": table_learning_rate, "eps": EPSILON}
        apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), settings)
    # One rank has every table whole anyway, and then does not sort ids by rank.
    kinds = WHOLE_ROWS if world.size > 1 else [ShardingType.TABLE_WISE.value]
    tables = [table.name for collection in collections for table in collection.embedding_configs()]
    sharders = [cast("ModuleSharder[nn.Module]", EmbeddingCollectionSharder())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=world.size, compute_device=world.device.type),
            constraints={name: ParameterConstraints(sharding_types=kinds) for name in tables},
        )
        group = dist.group.WORLD
        assert group is not None, "joined_world makes the group"
        plan = planner.collective_plan(model, sharders, group)
        return DistributedModelParallel(model, device=world.device, plan=plan, sharders=sharders)
