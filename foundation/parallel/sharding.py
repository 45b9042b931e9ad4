"""Spreads a model over the ranks: TorchRec's planner and DistributedModelParallel, row-wise AdaGrad fused into the backward."""

from __future__ import annotations

import logging
import warnings

import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.types import ModuleSharder
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from foundation.parallel.world import World

EPSILON = 1e-8


def shard(model: nn.Module, world: World, *, table_learning_rate: float) -> DistributedModelParallel:
    """Give the model's tables memory, rank by rank, and their optimizer.

    Args:
        model: dense parameters in memory, `EmbeddingCollection`s on the meta device.
        world: the ranks to spread over.
        table_learning_rate: of the tables' row-wise AdaGrad.

    Returns:
        The model to call; its `fused_optimizer` holds the tables' optimizer state.
    """
    for module in model.modules():
        if isinstance(module, EmbeddingCollection):
            settings = {"lr": table_learning_rate, "eps": EPSILON}
            apply_optimizer_in_backward(RowWiseAdagrad, module.parameters(), settings)
    sharders: list[ModuleSharder] = [EmbeddingCollectionSharder()]  # pyright: ignore[reportAssignmentType]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torchrec").setLevel(logging.ERROR)
        planner = EmbeddingShardingPlanner(topology=Topology(world_size=world.size, compute_device=world.device.type))
        group = dist.group.WORLD
        assert group is not None, "joined_world makes the group"
        plan = planner.collective_plan(model, sharders, group)
        return DistributedModelParallel(model, device=world.device, plan=plan, sharders=sharders)
