"""`gemcut plan`: what training a project would cost on a cluster, by the size of a sharding group; nothing is run."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from foundation.parallel.cluster import Cluster
from foundation.parallel.cost import GroupCost, best_group, group_costs
from foundation.parallel.reliability import Reliability, mean_time_between_failures_h, predicted_ettr
from foundation.parallel.traffic import Workload
from gemcut.cluster_options import WHERE, cluster_of
from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace
from serving.errors import Problem, ProjectError

if TYPE_CHECKING:
    from foundation.efficiency.workload import Sample

GIB = 2**30
TABLE_WIDTH = 120
SECONDS_PER_HOUR = 3600.0
MOST_GPUS = 2**17
NOT_KNOWN = (
    "congestion of the network, and what else slows a large all-to-all down",
    "the time to launch kernels, which a small model spends most of its step on",
    "stragglers other than by busy rows, time that ranks wait for data",
    "memory that allocators and libraries take, and fragments",
)


def plan(
    loaded: LoadedProject,
    screen: Screen,
    *,
    gpus: int,
    gpus_per_node: int,
    hardware: str,
    batch_requests: int | None,
    assumed: Iterable[str] = (),
) -> dict[str, Any]:
    """Predict from the project's store; nothing is written.

    Args:
        loaded: the project.
        screen: gets the table.
        gpus: T.
        gpus_per_node: at least 1.
        hardware: a name of `HARDWARE`.
        batch_requests: of a step over all ranks; the project's own for each rank if absent.
        assumed: `NAME=VALUE` for fields of `Assumptions`.

    Raises:
        ProjectError: a cluster, a batch or an assumption that can not be.
        DataError: no store, or none that can be used.
    """
    cluster = cluster_of(gpus, gpus_per_node, hardware, assumed)
    per_rank = loaded.project.foundation.training.batch_requests
    requests = per_rank * gpus if batch_requests is None else batch_requests
    if requests < gpus:
        remedy = f"Give --batch-requests {gpus} or more, or fewer GPUs."
        raise ProjectError(Problem(f"{WHERE}: --batch-requests", "a request for each GPU", str(requests), remedy))
    workload, sample = _measured(loaded, screen)
    workload = replace(workload, requests=requests)
    costs = group_costs(workload, cluster)
    best = best_group(costs)
    enough = None if best else _gpus_that_fit(workload, cluster)
    reliability = _reliability(cluster, best)
    people = screen.people if screen.people.is_terminal else Console(width=TABLE_WIDTH, file=sys.stderr)
    people.print(_table(costs, best))
    _say(screen, workload, cluster, best=best, reliability=reliability)
    if best is None:
        _say_what_fits(screen, cluster, enough)
    return {
        "cluster": asdict(cluster) | {"num_nodes": cluster.num_nodes, "hardware_name": hardware},
        "workload": _described(workload) | {"sampled_requests": sample.requests, "sampled_events": sample.events},
        "groups": [_cost(cost) for cost in costs],
        "best": best.group_size if best else None,
        "gpus_that_fit": gpus if best else enough,
        "reliability": asdict(reliability) if reliability else None,
        "not_known": list(NOT_KNOWN),
    }


def _measured(loaded: LoadedProject, screen: Screen) -> tuple[Workload, Sample]:
    from foundation.data.store import Store
    from foundation.efficiency.workload import workload_of

    space, project = Workspace(loaded), loaded.project
    with screen.progress("plan") as tell:
        tell(0.0, "counting on the store")
        store = Store.open(space.store, project)
        return workload_of(project, project.foundation, store, until_us=space.until_us)


def _gpus_that_fit(workload: Workload, cluster: Cluster) -> int | None:
    """The first doubling of the GPUs with as many requests each that some group fits; None if none does."""
    each = workload.requests / cluster.gpus
    gpus = cluster.gpus
    while (gpus := 2 * gpus) <= MOST_GPUS:
        whole = gpus if gpus <= cluster.gpus_per_node else gpus - gpus % cluster.gpus_per_node
        larger = replace(cluster, gpus=whole)
        if whole % larger.dense_shards.size == 0 and best_group(
            group_costs(replace(workload, requests=each * whole), larger)
        ):
            return whole
    return None


def _reliability(cluster: Cluster, best: GroupCost | None) -> Reliability | None:
    """A save is taken to stop training for a moment and while a rank's state is copied to its host."""
    if best is None:
        return None
    assumed = cluster.assumptions
    return predicted_ettr(
        save_h=(assumed.save_s + best.memory.saved / cluster.hardware.host_bytes_per_s) / SECONDS_PER_HOUR,
        mtbf_h=mean_time_between_failures_h(cluster.num_nodes, assumed.failures_per_1000_node_days),
        outage_h=assumed.restart_h + assumed.queue_h,
    )


def _described(workload: Workload) -> dict[str, Any]:
    """The workload without its lists of rows."""
    tables = [
        {
            "name": table.name,
            "rows": table.rows,
            "width": table.width,
            "features": table.features,
            "lookups_per_request": table.lookups,
        }
        for table in workload.tables
    ]
    return {
        "requests_per_step": workload.requests,
        "rows_per_request": workload.rows_per_request,
        "lookups_per_request": workload.lookups,
        "table_bytes": workload.table_bytes,
        "dense_parameters": workload.dense_parameters,
        "flops_per_request": workload.flops_per_request,
        "activation_bytes_per_request": workload.activation_bytes_per_request,
        "forward_passes": workload.forward_passes,
        "precision": workload.precision,
        "tables": tables,
    }


def _cost(cost: GroupCost) -> dict[str, Any]:
    found = asdict(cost)
    found["memory"]["total"], found["sparse"]["total"] = cost.memory.total, cost.sparse.total
    found["dense"]["total"], found["time"]["total"] = cost.dense.total, cost.time.total
    return found


def _table(costs: Iterable[GroupCost], best: GroupCost | None) -> Table:
    columns = (
        "group",
        "replicas",
        "memory GiB",
        "sparse MB",
        "replicas MB",
        "dense MB",
        "busiest",
        "step ms",
        "rows/s",
    )
    table = Table(*columns, title="a step by size of the sharding group, of one rank")
    for column in table.columns:
        column.justify = "right"
    for cost in costs:
        chosen = best is not None and cost.group_size == best.group_size
        style = "bold green" if chosen else None if cost.fits else "dim"
        table.add_row(
            f"{cost.group_size}{' *' if chosen else ''}",
            str(cost.replicas),
            f"{cost.memory.total / GIB:,.2f}{'' if cost.fits else ' !'}",
            f"{cost.sparse.total / 1e6:,.2f}",
            f"{cost.replica_bytes / 1e6:,.2f}",
            f"{cost.dense.total / 1e6:,.2f}",
            f"{cost.imbalance:.2f}x",
            f"{cost.time.total * 1e3:,.2f}",
            f"{cost.rows_per_s:,.0f}",
            style=style,
        )
    return table


def _say(
    screen: Screen, workload: Workload, cluster: Cluster, *, best: GroupCost | None, reliability: Reliability | None
) -> None:
    assumed, each = cluster.assumptions, workload.requests / cluster.gpus
    peak = cluster.hardware.peak_flops_per_s[workload.precision]
    screen.say(
        "  * the fastest that fits   ! more than a GPU may hold   busiest: lookups of the busiest rank over the mean"
    )
    screen.say(
        f"[bold]counted[/bold]  {workload.lookups:,.0f} lookups, {workload.rows_per_request:,.1f} candidates, "
        f"{workload.flops_per_request / 1e6:,.1f} MFLOP a request; {workload.dense_parameters:,} dense parameters; "
        f"tables {workload.table_bytes / GIB:,.3f} GiB"
    )
    screen.say(
        f"[bold]assumed[/bold]  {workload.requests:,.0f} requests a step, {each:,.0f} a GPU; "
        f"{peak / 1e12:,.1f} TFLOP/s at MFU {assumed.mfu:.0%}; {assumed.overlap:.0%} of the communication hidden; "
        f"{cluster.hardware.intra_bytes_per_s / 1e9:,.0f} GB/s in a node, "
        f"{cluster.hardware.inter_bytes_per_s / 1e9:,.0f} GB/s between nodes; every table row-wise; dense part sharded "
        f"over {cluster.dense_shards.size}; --assume changes these"
    )
    if reliability is not None and best is not None:
        screen.say(f"[bold]failures[/bold] {_of_failures(reliability, cluster.num_nodes)}")
    screen.say(f"[bold]not known[/bold] {'; '.join(NOT_KNOWN)}")


def _of_failures(found: Reliability, num_nodes: int) -> str:
    nodes = f"{num_nodes:,} node{'s' if num_nodes > 1 else ''}"
    if not math.isfinite(found.mtbf_h):
        return f"none assumed ({nodes}), so that no save is needed; ETTR {found.ettr:.3f}"
    every = f"every {found.interval_h * 60:,.1f} min, {found.save_h * SECONDS_PER_HOUR:.3f} s each"
    return f"one in {found.mtbf_h:,.1f} h ({nodes}); save {every}; ETTR {found.ettr:.3f}"


def _say_what_fits(screen: Screen, cluster: Cluster, enough: int | None) -> None:
    limit = cluster.hardware.memory_bytes * cluster.assumptions.memory_share / GIB
    more = (
        f"{enough:,} GPUs would"
        if enough
        else f"nor do up to {MOST_GPUS:,} GPUs: fewer requests a GPU, or a smaller model"
    )
    screen.say(f"[bold red]no group fits[/bold red] into {limit:,.1f} GiB a GPU; {more}")
