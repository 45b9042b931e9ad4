"""The cost model against numbers worked out by hand."""

from dataclasses import replace

import pytest

from foundation.parallel.cluster import Assumptions, Cluster, Hardware, Peers
from foundation.parallel.cost import StepTime, best_group, group_cost, group_costs, memory_by_rank, step_time
from foundation.parallel.traffic import (
    TableUse,
    Workload,
    all_reduce_bytes,
    dense_traffic,
    imbalance,
    replica_bytes,
    sparse_traffic,
)

# Round numbers, so that a reader can do the sums: 1 GB/s in a node, 0.1 GB/s between nodes, no latency.
HARDWARE = Hardware(
    memory_bytes=1e6,
    peak_flops_per_s={"float32": 1e9, "bfloat16": 4e9},
    memory_bytes_per_s=1e10,
    intra_bytes_per_s=1e9,
    inter_bytes_per_s=1e8,
    host_bytes_per_s=1e9,
)
BARE = Assumptions(mfu=0.5, overlap=0.0, memory_share=1.0, latency_s=0.0, message_s=0.0)

ITEMS = TableUse(name="item", rows=1000, width=4, features=2, lookups=30.0)
USERS = TableUse(name="user", rows=10, width=4, features=1, lookups=1.0)
WORKLOAD = Workload(
    tables=(ITEMS, USERS),
    dense_parameters=800,
    flops_per_request=1e4,
    activation_bytes_per_request=100.0,
    rows_per_request=10.0,
    requests=64,
)


def cluster(gpus, per_node=4, **assumed):
    return Cluster(gpus, per_node, HARDWARE, replace(BARE, **assumed))


def test_a_flat_group_sends_what_is_counted_by_hand():
    sent = sparse_traffic(WORKLOAD, requests=8, num_ranks=4)
    assert sent.splits == 3 * 8 * 3  # numbers, bytes, peers
    assert sent.lengths == 3 * 8 * 8 * 3  # features, requests, bytes, peers
    assert sent.ids == 31 * 8 * 8 * 3 / 4  # lookups, requests, bytes, share elsewhere
    assert sent.embeddings == 31 * 8 * 4 * 4 * 3 / 4  # lookups, requests, width, bytes, share
    assert sent.gradients == sent.embeddings
    assert sent.total == 72 + 576 + 1488 + 2976 + 2976


def test_what_is_scored_apart_is_learned_from_the_same_rows():
    apart, once = (
        sparse_traffic(replace(WORKLOAD, scored_apart=way), requests=8, num_ranks=4) for way in (True, False)
    )
    assert apart == once


def test_replicas_average_whole_shards_and_their_state():
    assert WORKLOAD.shard_bytes(4) == (250 + 3) * 4 * 4
    assert WORKLOAD.state_bytes(4) == (250 + 3) * 4
    assert replica_bytes(WORKLOAD, 4, 2) == all_reduce_bytes(253 * 20, 2) == 253 * 20
    assert replica_bytes(WORKLOAD, 4, 1) == 0


def test_hsdp_gathers_scatters_and_reduces():
    sent = dense_traffic(WORKLOAD, num_shards=4, num_replicas=2)
    assert sent.gather == 3 * 3200 * 3 / 4  # two forward passes and a backward pass
    assert sent.scatter == 3200 * 3 / 4
    assert sent.all_reduce == 2 * (3200 / 4) / 2
    alone = dense_traffic(WORKLOAD, num_shards=1, num_replicas=4)
    assert (alone.gather, alone.scatter, alone.all_reduce) == (0, 0, 2 * 3200 * 3 / 4)


def test_groups_are_strided_so_that_replicas_share_a_node():
    two_nodes = cluster(8)
    assert two_nodes.sharding_group(4) == Peers(4, 2)  # TorchRec's [0, 2, 4, 6]: 0 and 2 on the first node
    assert two_nodes.replicas(4) == Peers(2, 2)  # [0, 1]
    assert two_nodes.sharding_group(8) == Peers(8, 4)
    assert two_nodes.replicas(1) == Peers(8, 4)
    assert cluster(12).group_sizes() == (1, 3, 6, 12)
    assert cluster(2, 8).group_sizes() == (1, 2)


def test_an_all_to_all_waits_for_its_slower_part():
    eight = cluster(8)
    # 700 bytes to 7 peers: 100 to each, 3 of them in the node at 1e9, 4 outside at 1e8.
    assert eight.all_to_all_s(700, Peers(8, 4)) == pytest.approx(max(300 / 1e9, 400 / 1e8))
    assert eight.all_to_all_s(700, Peers(1, 1)) == 0
    slow = cluster(8, latency_s=1.0, message_s=0.5)
    assert slow.all_to_all_s(0, Peers(8, 4)) == 1 + 0.5 * 7


def test_an_all_reduce_crosses_nodes_with_what_a_node_has_left():
    # Within 4: 3/4 of 800 bytes at 1e9; between 2 nodes: 1/2 of the 200 bytes of a shard at 1e8; there and back.
    assert cluster(8).all_reduce_s(800, Peers(8, 4)) == pytest.approx(2 * (600 / 1e9 + 100 / 1e8))
    assert cluster(8).gather_s(800, Peers(4, 4)) == pytest.approx(600 / 1e9)


def test_memory_is_that_of_the_fullest_rank():
    held = memory_by_rank(WORKLOAD, cluster(8), num_ranks=4)
    assert held.tables + held.table_optimizer == 253 * 20
    assert held.dense == 3200 * (5 / 4 + 1)  # parameters, gradients, two moments, averages over 4; one copy gathered
    busiest = (30 / 4 + 0.3) / (31 / 4)  # 3 of 10 users on the first ranks, a quarter of the items
    assert held.embeddings == pytest.approx(2 * 8 * 31 * 16 * (1 + busiest))
    assert held.activations == 8 * 100


def test_the_price_of_replicas_is_that_of_the_paper():
    even = replace(WORKLOAD, tables=(replace(ITEMS, rows=1024),))
    flat, grouped = (memory_by_rank(even, cluster(8), size).tables for size in (8, 2))
    total, replicas, gpus = even.table_bytes, 4, 8
    assert grouped - flat == total * (replicas - 1) / gpus  # S (M - 1) / T


# Seconds of work, of communication that may be hidden, the share that is, of the average over replicas; of the step.
@pytest.mark.parametrize(
    ("work", "talk", "overlap", "replicas", "expected"),
    [(4, 2, 1.0, 3, 4 + 3), (4, 2, 0.0, 3, 4 + 2 + 3), (4, 2, 0.5, 0, 4 + 1), (1, 8, 0.5, 0, 4 + 4), (1, 8, 1.0, 0, 8)],
)
def test_a_step_takes_the_larger_of_both_and_what_is_not_hidden(work, talk, overlap, replicas, expected):
    halves = {"compute": work / 2, "lookup": work / 2, "all_to_all": talk / 2, "dense": talk / 2}
    assert StepTime(**halves, replicas=replicas, overlap=overlap).total == expected


def test_the_busiest_rank_sets_the_pace():
    hot = replace(ITEMS, hot_rows=(0,), hot_shares=(0.5,))
    uneven = replace(WORKLOAD, tables=(hot,))
    assert imbalance((hot,), 4) == pytest.approx(4 * (0.5 + 0.5 / 4))
    even = step_time(replace(WORKLOAD, tables=(ITEMS,)), cluster(4), 4)
    slowed = step_time(uneven, cluster(4), 4)
    assert slowed.lookup == pytest.approx(2.5 * even.lookup)
    assert slowed.all_to_all > even.all_to_all


def test_a_table_with_fewer_rows_than_ranks_lies_on_the_first_ones():
    tiny = TableUse(name="surface", rows=5, width=4, features=1, lookups=1.0)
    assert tiny.lookups_by_rank(4).tolist() == pytest.approx([0.4, 0.4, 0.2, 0.0])
    assert tiny.lookups_by_rank(8).tolist() == pytest.approx([0.2] * 5 + [0.0] * 3)


def test_rows_a_second_are_rows_over_the_step():
    cost = group_cost(WORKLOAD, cluster(8), 4)
    assert cost.time.compute == pytest.approx(8 * 1e4 / (1e9 * 0.5))
    assert cost.rows_per_s == pytest.approx(64 * 10 / cost.time.total)


def test_the_best_group_is_the_fastest_that_fits():
    costs = group_costs(WORKLOAD, cluster(8))
    assert [cost.group_size for cost in costs] == [1, 2, 4, 8]
    fastest = max(costs, key=lambda cost: cost.rows_per_s)
    assert best_group(costs) == fastest
    limit = min(cost.memory.total for cost in costs)
    tight = replace(HARDWARE, memory_bytes=limit)
    fitting = best_group(group_costs(WORKLOAD, Cluster(8, 4, tight, BARE)))
    assert fitting is not None
    assert fitting.memory.total == limit
    assert best_group(group_costs(WORKLOAD, Cluster(8, 4, replace(HARDWARE, memory_bytes=1.0), BARE))) is None
