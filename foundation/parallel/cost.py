"""What training would cost on a cluster, for each size of a sharding group: memory, bytes, seconds, rows a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foundation.parallel.cluster import Cluster
from foundation.parallel.traffic import (
    DenseTraffic,
    SparseTraffic,
    Workload,
    dense_traffic,
    replica_bytes,
    sparse_traffic,
)

ADAMW_MOMENTS = 2
UPDATE_PASSES = 2
"""A looked-up row is read and written again when it learns."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the fullest rank.

    Attributes:
        tables: its shard.
        table_optimizer: row-wise AdaGrad, one float a row.
        dense: parameters, gradients, AdamW's moments and averages, sharded; and one whole copy, while it is gathered.
        embeddings: rows of its own requests and rows that it answers with, and the gradients of both.
        activations: kept for the backward pass.
    """

    tables: float
    table_optimizer: float
    dense: float
    embeddings: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.tables + self.table_optimizer + self.dense + self.embeddings + self.activations

    @property
    def saved(self) -> float:
        """What a checkpoint holds of it, at most: everything but what a step makes."""
        return self.tables + self.table_optimizer + self.dense


def memory_by_rank(workload: Workload, cluster: Cluster, num_ranks: int) -> Memory:
    """Memory of the fullest rank of a group of N.

    Tables and state: ceil(rows / N) of each table. Dense under HSDP over f ranks: 4 P / f bytes for each of parameters,
    gradients, two moments and, where scores are made apart, averages (ZeRO, arXiv 1910.02054, section 5); and 4 P where
    f > 1, since what is gathered is at most the whole. Embeddings, an estimate of ours: a rank holds the rows of its
    own requests and those that it answers with, the busiest `imbalance` times as many, each forward and backward.

    The price of M replicas in place of one is S (M - 1) / T bytes a GPU for tables of S bytes (arXiv 2508.03854).
    """
    shards = cluster.dense_shards.size
    kept = 1 + 1 + ADAMW_MOMENTS + (1 if workload.scored_apart else 0)
    requests = workload.requests / cluster.gpus
    return Memory(
        tables=workload.shard_bytes(num_ranks),
        table_optimizer=workload.state_bytes(num_ranks),
        dense=workload.dense_bytes * (kept / shards + (1 if shards > 1 else 0)),
        embeddings=2 * requests * workload.embedding_bytes * (1 + workload.imbalance(num_ranks)),
        activations=requests * workload.activation_bytes_per_request,
    )


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step of the slowest rank.

    Attributes:
        compute: matrix products.
        lookup: rows out of the busiest rank's memory and back.
        all_to_all: ids, rows and gradients of the busiest rank.
        dense: gather, scatter and all-reduce.
        replicas: the average over replicas of a shard.
        overlap: share of `all_to_all` and `dense` that runs beside computation.
    """

    compute: float
    lookup: float
    all_to_all: float
    dense: float
    replicas: float
    overlap: float

    @property
    def total(self) -> float:
        """max(computation, what can be hidden of communication) + what cannot.

        With an overlap of 1 it is the max(compute, communication) that Meta states for GEM (engineering.fb.com, 3 Aug
        2026), with 0 their sum. The average over replicas is never hidden: it comes when a step is over.
        """
        busy, talk = self.compute + self.lookup, self.all_to_all + self.dense
        return max(busy, self.overlap * talk) + (1 - self.overlap) * talk + self.replicas


def step_time(workload: Workload, cluster: Cluster, num_ranks: int) -> StepTime:
    """Seconds of a step in groups of N, of the slowest rank.

    Computation: FLOPs over peak times MFU; a row is read once for all forward passes, then read and written. The
    busiest rank answers `imbalance` times the mean, and everyone waits for it.
    """
    requests, busiest = workload.requests / cluster.gpus, workload.imbalance(num_ranks)
    hardware, assumed = cluster.hardware, cluster.assumptions
    sent, peers = sparse_traffic(workload, requests, num_ranks), cluster.sharding_group(num_ranks)
    collectives = (sent.splits, sent.lengths, sent.ids * busiest, sent.embeddings * busiest, sent.gradients * busiest)
    shards, copies = cluster.dense_shards, cluster.dense_replicas
    gather = cluster.gather_s(workload.dense_bytes, shards)
    whole = workload.shard_bytes(num_ranks) + workload.state_bytes(num_ranks)
    moved = requests * busiest * workload.embedding_bytes * (1 + UPDATE_PASSES)
    return StepTime(
        compute=requests * workload.flops_per_request / (hardware.peak_flops_per_s[workload.precision] * assumed.mfu),
        lookup=moved / hardware.memory_bytes_per_s,
        all_to_all=sum(cluster.all_to_all_s(total, peers) for total in collectives),
        dense=(workload.forward_passes + 2) * gather + cluster.all_reduce_s(workload.dense_bytes / shards.size, copies),
        replicas=cluster.all_reduce_s(whole, cluster.replicas(num_ranks)),
        overlap=assumed.overlap,
    )


@dataclass(frozen=True, slots=True)
class GroupCost:
    """What one size of the sharding group would cost.

    Attributes:
        group_size: N; N = T is the flat layout, one copy of the tables.
        replicas: M = T / N.
        imbalance: lookups of the busiest rank over the mean.
        fits: within the share of a GPU's memory that a plan may fill.
        sparse: bytes of a rank and step, on average.
        replica_bytes: the same, for the average over replicas.
    """

    group_size: int
    replicas: int
    imbalance: float
    memory: Memory
    fits: bool
    sparse: SparseTraffic
    replica_bytes: float
    dense: DenseTraffic
    time: StepTime
    rows_per_s: float


def group_cost(workload: Workload, cluster: Cluster, num_ranks: int) -> GroupCost:
    """The cost of sharding groups of N ranks, N one of `cluster.group_sizes()`."""
    replicas = cluster.gpus // num_ranks
    memory, time = memory_by_rank(workload, cluster, num_ranks), step_time(workload, cluster, num_ranks)
    return GroupCost(
        group_size=num_ranks,
        replicas=replicas,
        imbalance=workload.imbalance(num_ranks),
        memory=memory,
        fits=memory.total <= cluster.hardware.memory_bytes * cluster.assumptions.memory_share,
        sparse=sparse_traffic(workload, workload.requests / cluster.gpus, num_ranks),
        replica_bytes=replica_bytes(workload, num_ranks, replicas),
        dense=dense_traffic(workload, cluster.dense_shards.size, cluster.dense_replicas.size),
        time=time,
        rows_per_s=workload.requests * workload.rows_per_request / time.total,
    )


def group_costs(workload: Workload, cluster: Cluster) -> tuple[GroupCost, ...]:
    """Every group size that the cluster can form, ascending."""
    return tuple(group_cost(workload, cluster, size) for size in cluster.group_sizes())


def best_group(costs: Iterable[GroupCost]) -> GroupCost | None:
    """The fastest that fits; of equally fast ones the one with less memory; None if none fits."""
    fitting = [cost for cost in costs if cost.fits]
    return min(fitting, key=lambda cost: (-cost.rows_per_s, cost.memory.total), default=None)
