"""What a training step sends between ranks, in bytes: sparse all-to-all, replicas of 2D, dense part.

Letters: T ranks, N ranks of a sharding group, M = T / N replicas, b requests of a rank, L lookups and F id features of
a request, D width, P dense parameters. A rank's traffic is what it sends to others; over all ranks as much is received.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLOAT_BYTES, ID_BYTES = 4, 8
SPLITS = 3
"""Numbers that a rank tells each peer before it sends ids: how many lengths, how many ids, how many requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """One embedding table and how a request uses it.

    Attributes:
        name: of the table.
        rows: at least 1.
        width: D, floats a row.
        features: id features that look up in it.
        lookups: of one request on average, over all these features.
        hot_rows: rows that are looked up most.
        hot_shares: share of the lookups of each of them; the rest is spread evenly over all rows.
    """

    name: str
    rows: int
    width: int
    features: int
    lookups: float
    hot_rows: tuple[int, ...] = ()
    hot_shares: tuple[float, ...] = ()

    def shard_rows(self, num_ranks: int) -> int:
        """Rows of the largest shard: ceil(rows / N), as TorchRec cuts a table row-wise."""
        return -(-self.rows // num_ranks)

    def lookups_by_rank(self, num_ranks: int) -> NDArray[np.float64]:
        """[N] float64: lookups of one request that each rank of a group answers."""
        block = self.shard_rows(num_ranks)
        starts = np.minimum(np.arange(num_ranks + 1) * block, self.rows)
        answered = np.diff(starts) / self.rows * (1 - sum(self.hot_shares))
        np.add.at(answered, np.array(self.hot_rows, dtype=np.int64) // block, self.hot_shares)
        return answered * self.lookups


def imbalance(tables: tuple[TableUse, ...], num_ranks: int) -> float:
    """Lookups that the busiest rank of a group answers, over the mean; at least 1.

    A row lies on one rank, so that a row with a share p of all lookups gives its rank p and the mean is 1 / N: the
    imbalance grows with N, at least to p N. Ours; it counts looked-up rows, as TorchRec sends a row as often as it
    is asked for.

    Example:
        >>> half = TableUse(name="item", rows=100, width=4, features=1, lookups=1.0, hot_rows=(7,), hot_shares=(0.5,))
        >>> [round(imbalance((half,), n), 3) for n in (1, 2, 4)]
        [1.0, 1.5, 2.5]
    """
    answered = sum((table.lookups_by_rank(num_ranks) for table in tables), np.zeros(num_ranks))
    return float(answered.max() / answered.mean()) if answered.any() else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a step works on.

    Attributes:
        tables: every embedding table, all cut row-wise.
        dense_parameters: P, everything else that is learned.
        flops_per_request: matrix products of a step, forward and backward and where scores are made apart.
        activation_bytes_per_request: kept for the backward pass, looked-up rows left out.
        rows_per_request: candidates of a request on average.
        requests: of a step, over all ranks.
        scored_apart: a second forward pass makes the scores, from averaged parameters.
        precision: of the dense part's matrix products, "float32" or "bfloat16".
    """

    tables: tuple[TableUse, ...]
    dense_parameters: int
    flops_per_request: float
    activation_bytes_per_request: float
    rows_per_request: float
    requests: float
    scored_apart: bool = True
    precision: str = "float32"

    @property
    def forward_passes(self) -> int:
        """Of a step: 2 where scores are made apart."""
        return 2 if self.scored_apart else 1

    @property
    def num_features(self) -> int:
        """F."""
        return sum(table.features for table in self.tables)

    @property
    def lookups(self) -> float:
        """L."""
        return sum(table.lookups for table in self.tables)

    @property
    def embedding_bytes(self) -> float:
        """Of the rows that one request looks up: the sum of L D over tables, in bytes."""
        return sum(table.lookups * table.width for table in self.tables) * FLOAT_BYTES

    @property
    def table_bytes(self) -> int:
        """S: of all tables, one copy, without optimizer state."""
        return sum(table.rows * table.width for table in self.tables) * FLOAT_BYTES

    @property
    def dense_bytes(self) -> int:
        """Of the dense parameters in float32."""
        return self.dense_parameters * FLOAT_BYTES

    def shard_bytes(self, num_ranks: int) -> int:
        """Of the largest shard of all tables."""
        return sum(table.shard_rows(num_ranks) * table.width for table in self.tables) * FLOAT_BYTES

    def state_bytes(self, num_ranks: int) -> int:
        """Of the row-wise AdaGrad state of such a shard: one float a row."""
        return sum(table.shard_rows(num_ranks) for table in self.tables) * FLOAT_BYTES

    def imbalance(self, num_ranks: int) -> float:
        """Of the lookups, in groups of N; see `imbalance`."""
        return imbalance(self.tables, num_ranks)


@dataclass(frozen=True, slots=True)
class SparseTraffic:
    """Bytes of a rank's all-to-alls in one step, averaged over the ranks.

    Attributes:
        splits: how much of the others is to come.
        lengths: how many ids each request has, by feature and peer.
        ids: looked up elsewhere.
        embeddings: rows that were asked for, back to who asked.
        gradients: of these rows, to where they lie.
    """

    splits: float
    lengths: float
    ids: float
    embeddings: float
    gradients: float

    @property
    def total(self) -> float:
        """All five."""
        return self.splits + self.lengths + self.ids + self.embeddings + self.gradients


def sparse_traffic(workload: Workload, requests: float, num_ranks: int) -> SparseTraffic:
    """The all-to-alls of one step in a group of N ranks.

    Each forward pass: 3 numbers and F b lengths to each of N - 1 peers, L b ids of which (N - 1) / N lie elsewhere, and
    as many rows back. The backward pass sends as many gradients. Ids and lengths have 8 bytes, floats 4.

    Args:
        workload: what a step works on.
        requests: b, of a rank and step.
        num_ranks: N.

    Source: ours, read off TorchRec 1.8's row-wise sharding of an `EmbeddingCollection` (`rw_sequence_sharding.py`,
    `dist_data.py`): rows are not summed before they are sent, so there is no reduce-scatter, and an id that is asked
    for twice is sent twice. Checked against the bytes that gloo ranks send.
    """
    peers = num_ranks - 1
    elsewhere = peers / num_ranks
    return SparseTraffic(
        splits=SPLITS * ID_BYTES * peers,
        lengths=workload.num_features * requests * ID_BYTES * peers,
        ids=workload.lookups * requests * ID_BYTES * elsewhere,
        embeddings=workload.embedding_bytes * requests * elsewhere,
        gradients=workload.embedding_bytes * requests * elsewhere,
    )


def all_reduce_bytes(whole_bytes: float, num_ranks: int) -> float:
    """Bytes that a rank sends in a ring all-reduce: 2 B (N - 1) / N (Patarasuk and Yuan 2009).

    Example:
        >>> all_reduce_bytes(100.0, 1), all_reduce_bytes(100.0, 4)
        (0.0, 150.0)
    """
    return 2 * whole_bytes * (num_ranks - 1) / num_ranks


def replica_bytes(workload: Workload, num_ranks: int, num_replicas: int) -> float:
    """Bytes that a rank sends to average its shard and the shard's AdaGrad state over the M replicas, each step.

    Source: `DMPCollection.sync` of TorchRec, which all-reduces every row of the shard, looked up or not.
    """
    return all_reduce_bytes(workload.shard_bytes(num_ranks) + workload.state_bytes(num_ranks), num_replicas)


@dataclass(frozen=True, slots=True)
class DenseTraffic:
    """Bytes of a rank for the dense part in one step.

    Attributes:
        gather: parameters, for each forward pass and for the backward pass.
        scatter: gradients, to their shards.
        all_reduce: gradients, over the replicas of a shard.
    """

    gather: float
    scatter: float
    all_reduce: float

    @property
    def total(self) -> float:
        """All three."""
        return self.gather + self.scatter + self.all_reduce


def dense_traffic(workload: Workload, num_shards: int, num_replicas: int) -> DenseTraffic:
    """HSDP over shards times replicas; with one shard it is a plain all-reduce of gradients.

    Args:
        workload: what a step works on.
        num_shards: ranks that share one copy.
        num_replicas: copies.

    Source: ZeRO (arXiv 1910.02054, section 7.2.2) within the shards, `fully_shard` on a 2D mesh for what follows over
    the replicas. Parameters that a forward pass gathered are gathered again for the backward pass.
    """
    whole = workload.dense_bytes * (num_shards - 1) / num_shards
    return DenseTraffic(
        gather=(workload.forward_passes + 1) * whole,
        scatter=whole,
        all_reduce=all_reduce_bytes(workload.dense_bytes / num_shards, num_replicas),
    )
