"""A cluster as the cost model sees it: GPUs in nodes, two bandwidths, and how long a collective takes on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of GPU and what connects it, as its makers state it; every bandwidth is of one GPU in one direction.

    Attributes:
        memory_bytes: of a GPU.
        peak_flops_per_s: of dense matrix products, by the type that they are in.
        memory_bytes_per_s: of a GPU's own memory, read and written together.
        intra_bytes_per_s: to the other GPUs of the node.
        inter_bytes_per_s: to other nodes.
        host_bytes_per_s: to the memory of the host, where an asynchronous checkpoint is staged.
    """

    memory_bytes: float
    peak_flops_per_s: dict[str, float]
    memory_bytes_per_s: float
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    host_bytes_per_s: float


HARDWARE: dict[str, Hardware] = {
    "h200": Hardware(
        memory_bytes=141e9,
        peak_flops_per_s={"float32": 67e12, "bfloat16": 989e12},
        memory_bytes_per_s=4.8e12,
        intra_bytes_per_s=450e9,
        inter_bytes_per_s=50e9,
        host_bytes_per_s=50e9,
    ),
    "h100": Hardware(
        memory_bytes=80e9,
        peak_flops_per_s={"float32": 67e12, "bfloat16": 989e12},
        memory_bytes_per_s=3.35e12,
        intra_bytes_per_s=450e9,
        inter_bytes_per_s=50e9,
        host_bytes_per_s=50e9,
    ),
    "a100": Hardware(
        memory_bytes=80e9,
        peak_flops_per_s={"float32": 19.5e12, "bfloat16": 312e12},
        memory_bytes_per_s=2.0e12,
        intra_bytes_per_s=300e9,
        inter_bytes_per_s=25e9,
        host_bytes_per_s=25e9,
    ),
    "cpu": Hardware(
        memory_bytes=4e9,
        peak_flops_per_s={"float32": 100e9, "bfloat16": 100e9},
        memory_bytes_per_s=10e9,
        intra_bytes_per_s=1e9,
        inter_bytes_per_s=1.25e9,
        host_bytes_per_s=10e9,
    ),
}
"""GPUs as in an SXM node with one network card a GPU (NDR 400 Gb/s, for the A100 HDR 200 Gb/s). `cpu` is one process on
one core: round figures of ours, to be replaced by what `gemcut bench foundation` measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What nobody can look up before the first run. Each is stated beside every prediction.

    Attributes:
        mfu: share of the peak that the dense part reaches while it computes, in (0, 1].
        overlap: share of the communication of a step that runs beside computation, in [0, 1].
        memory_share: share of a GPU's memory that a plan may fill, in (0, 1].
        latency_s: of any collective, at least 0.
        message_s: of one peer in an all-to-all, which is a message to each, at least 0.
        dense_shard: GPUs that share one copy of the dense part; 0 for those of a node.
        failures_per_1000_node_days: at least 0; 6.5 is the worse of two clusters in arXiv 2410.21680.
        save_s: seconds that a save stops training, beside the copy of a rank's state to its host.
        restart_h: hours from a failure to the first new step.
        queue_h: hours of waiting for machines after a failure.
    """

    mfu: float = 0.25
    overlap: float = 0.5
    memory_share: float = 0.9
    latency_s: float = 20e-6
    message_s: float = 2e-6
    dense_shard: int = 0
    failures_per_1000_node_days: float = 6.5
    save_s: float = 1.0
    restart_h: float = 0.25
    queue_h: float = 0.05


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks of one collective.

    Attributes:
        size: all of them.
        in_node: those in one node, a divisor of `size`.
    """

    size: int
    in_node: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """GPUs in nodes.

    Attributes:
        gpus: ranks, T.
        gpus_per_node: a divisor of `gpus`, or at least as many.
    """

    gpus: int
    gpus_per_node: int
    hardware: Hardware
    assumptions: Assumptions = Assumptions()

    @property
    def local(self) -> int:
        """GPUs of a node that are in use."""
        return min(self.gpus, self.gpus_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes in use."""
        return self.gpus // self.local

    def group_sizes(self) -> tuple[int, ...]:
        """Group sizes N, ascending: T = M N, and the M replicas of a shard fill nodes or parts of one evenly.

        Example:
            >>> Cluster(16, 8, HARDWARE["h100"]).group_sizes()
            (1, 2, 4, 8, 16)
        """
        sizes = (n for n in range(1, self.gpus + 1) if self.gpus % n == 0)
        return tuple(n for n in sizes if self.local % (self.gpus // n) == 0 or (self.gpus // n) % self.local == 0)

    def sharding_group(self, size: int) -> Peers:
        """The ranks that share one copy of the tables; strided, so that a shard's replicas come to share a node.

        Source: `DMPCollection` of TorchRec: on 2 nodes with 4 GPUs, groups of 4 are [0, 2, 4, 6] and [1, 3, 5, 7].
        """
        return Peers(size, max(1, self.local // (self.gpus // size)))

    def replicas(self, size: int) -> Peers:
        """The ranks that hold the same shard, where sharding groups have `size`."""
        num = self.gpus // size
        return Peers(num, min(num, self.local))

    @property
    def dense_shards(self) -> Peers:
        """The ranks that share one copy of the dense part: neighbours."""
        size = self.assumptions.dense_shard or self.local
        return Peers(size, min(size, self.local))

    @property
    def dense_replicas(self) -> Peers:
        """The ranks that hold the same shard of the dense part."""
        num = self.gpus // self.dense_shards.size
        return Peers(num, max(1, self.local // self.dense_shards.size))

    def all_to_all_s(self, sent_bytes: float, peers: Peers) -> float:
        """Seconds of an all-to-all in which a rank sends `sent_bytes` to its peers, to each the same.

        latency + message (N - 1) + the slower of: what goes to peers in the node, what goes to others. Ours: an
        alpha-beta model with an alpha a peer, since NCCL and gloo send to each peer by itself. Congestion of the
        network is in none of it.
        """
        if peers.size == 1:
            return 0.0
        each = sent_bytes / (peers.size - 1)
        inside = each * (peers.in_node - 1) / self.hardware.intra_bytes_per_s
        outside = each * (peers.size - peers.in_node) / self.hardware.inter_bytes_per_s
        started = self.assumptions.latency_s + self.assumptions.message_s * (peers.size - 1)
        return started + max(inside, outside)

    def gather_s(self, whole_bytes: float, peers: Peers) -> float:
        """Seconds of an all-gather to `whole_bytes` on each rank, or of a reduce-scatter of them.

        latency + B (f - 1) / f within the node + B / f (n - 1) / n between nodes, of n nodes with f ranks each: a ring
        in each level (Patarasuk and Yuan 2009), one network card a GPU.
        """
        if peers.size == 1:
            return 0.0
        inside, nodes = peers.in_node, peers.size / peers.in_node
        within = whole_bytes * (inside - 1) / inside / self.hardware.intra_bytes_per_s
        between = whole_bytes / inside * (nodes - 1) / nodes / self.hardware.inter_bytes_per_s
        return self.assumptions.latency_s + within + between

    def all_reduce_s(self, whole_bytes: float, peers: Peers) -> float:
        """Seconds of an all-reduce of `whole_bytes`: a reduce-scatter, then an all-gather."""
        return 2 * self.gather_s(whole_bytes, peers)
