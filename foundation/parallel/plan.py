"""Which ranks hold which part of which table: TorchRec's planner decides what the project file leaves open."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn
from torchrec import EmbeddingCollection
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import (
    EnumerableShardingSpec,
    ModuleSharder,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
)

from foundation.config import TablePlacement
from foundation.model.embedding import TokenEmbedding, module_name
from foundation.parallel.plan_cache import TablePlan, plan_digest, remembered_plan
from foundation.parallel.reduce import of_first_rank
from serving.errors import Problem, ProjectError

WHOLE_ROWS = [ShardingType.ROW_WISE.value, ShardingType.TABLE_WISE.value]
"""What the planner may choose: a row's AdaGrad step depends on its whole gradient, and so the row is not cut."""


FUSED = EmbeddingComputeKernel.FUSED.value
"""Tables learn in the backward pass; see `foundation.parallel.sharding.TableOptimizer`."""


def table_plan(
    model: nn.Module,
    pinned: Mapping[str, TablePlacement],
    *,
    group_size: int,
    device_type: str,
    remembered_in: Path | None = None,
) -> TablePlan:
    """A placement for every table of a model, in the model's order, over `group_size` ranks; as the first rank has it.

    TorchRec builds tables in the order of their plan, with collectives of all ranks: one order for all of them.

    Args:
        model: with one `TokenEmbedding`, on the meta device.
        pinned: placements that are given, by table; one rank has all tables whole, whatever they are.
        group_size: ranks that share one copy of the tables.
        device_type: "cpu" or "cuda".
        remembered_in: folder that keeps plans from start to start.

    Raises:
        ProjectError: a pinned table does not exist, or its placement does not fit the group.
    """
    tables = _collection(model).embedding_configs()
    widths = {_table(config.name): config.embedding_dim for config in tables}
    _check(pinned, widths, group_size)
    if group_size == 1:  # it has every table whole anyway, and then does not sort ids by rank
        return {table: TablePlacement(kind="table_wise", ranks=(0,)) for table in widths}

    def make() -> TablePlan:
        return _planned(model, list(widths), pinned, group_size=group_size, device_type=device_type)

    def recall() -> TablePlan:
        if remembered_in is None:
            return make()
        digest = plan_digest(tables, pinned, group_size=group_size, device_type=device_type)
        return remembered_plan(remembered_in, digest, make)

    found = of_first_rank(recall)
    return {table: found[table] for table in widths}


def _planned(
    model: nn.Module,
    tables: Sequence[str],
    pinned: Mapping[str, TablePlacement],
    *,
    group_size: int,
    device_type: str,
) -> TablePlan:
    kinds = {table: [pinned[table].kind] if table in pinned else WHOLE_ROWS for table in tables}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=group_size, compute_device=device_type),
            constraints={module_name(table): ParameterConstraints(sharding_types=kinds[table]) for table in tables},
        )
        (chosen,) = planner.plan(model, [sharder()]).plan.values()
    plan: TablePlan = {}
    for name, found in cast("dict[str, ParameterSharding]", chosen).items():
        table = _table(name)
        given = pinned.get(table)
        ranks = given.ranks if given is not None and given.ranks is not None else tuple(found.ranks or ())
        by_rows = found.sharding_type == ShardingType.ROW_WISE.value
        plan[table] = TablePlacement.model_validate({"kind": found.sharding_type, "ranks": None if by_rows else ranks})
    return plan


def sharding_plan(model: nn.Module, plan: TablePlan, *, group_size: int, device_type: str) -> ShardingPlan:
    """TorchRec's form of a plan; ranks are still places in a sharding group."""
    generators = {
        module_name(table): {
            "row_wise": lambda _: row_wise(compute_kernel=FUSED),
            "table_wise": lambda ranks: table_wise(rank=ranks[0], compute_kernel=FUSED),
            "column_wise": lambda ranks: column_wise(ranks=list(ranks), compute_kernel=FUSED),
        }[placement.kind](placement.ranks)
        for table, placement in plan.items()
    }
    collection = _collection(model)
    (name,) = (name for name, module in model.named_modules() if module is collection)
    of_collection = construct_module_sharding_plan(
        collection,
        generators,
        sharder=sharder(),
        local_size=group_size,
        world_size=group_size,
        device_type=device_type,
    )
    return ShardingPlan(plan={name: of_collection})


def move_to_group(plan: ShardingPlan, group: int, num_groups: int, *, device_type: str) -> None:
    """Name the ranks of one sharding group in a plan, in place: place i of the group is rank `i * num_groups + group`.

    Groups are strided, as TorchRec's `DMPCollection` has them, so that the copies of a shard are neighbours.
    """
    for tables in plan.plan.values():
        for placement in cast("dict[str, ParameterSharding]", tables).values():
            placement.ranks = [rank * num_groups + group for rank in placement.ranks or ()]
            spec = placement.sharding_spec
            assert isinstance(spec, EnumerableShardingSpec), "of every kind that a plan can have"
            for shard, rank in zip(spec.shards, placement.ranks, strict=True):
                assert shard.placement is not None, "a plan says where"
                shard.placement = type(shard.placement)(f"rank:{rank}/{device_type}")


def sharder(optimizer: dict[str, Any] | None = None) -> ModuleSharder[nn.Module]:
    """TorchRec's, of embedding collections that learn by this optimizer, in FBGEMM's terms."""
    return cast("ModuleSharder[nn.Module]", EmbeddingCollectionSharder(fused_params=optimizer))


def _collection(model: nn.Module) -> EmbeddingCollection:
    (found,) = (module.collection for module in model.modules() if isinstance(module, TokenEmbedding))
    return found


def _table(name: str) -> str:
    return name.removeprefix(module_name(""))


def _check(pinned: Mapping[str, TablePlacement], widths: dict[str, int], group_size: int) -> None:
    problems: list[Problem] = []
    for table, placement in pinned.items():
        where = f"project file: foundation.parallel.tables.{table}"
        if table not in widths:
            problems.append(Problem(where, f"one of {', '.join(widths)}", table, "Correct the name, or delete it."))
            continue
        ranks: tuple[Any, ...] = (placement.ranks or ()) if group_size > 1 else ()
        if beyond := [rank for rank in ranks if rank >= group_size]:
            expected = f"ranks below {group_size}, places in a sharding group"
            problems.append(Problem(where, expected, str(beyond[0]), "Name other ranks, or leave `ranks` out."))
        if placement.kind == "column_wise" and ranks and widths[table] % (4 * len(ranks)):
            expected = f"a number of ranks that cuts a width of {widths[table]} into multiples of 4"
            problems.append(Problem(where, expected, str(len(ranks)), "Name fewer ranks, or take another kind."))
    if problems:
        raise ProjectError(problems)
