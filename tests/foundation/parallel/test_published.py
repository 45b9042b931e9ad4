"""The cost model beside published figures: values for failures, directions for 2D sparse parallelism.

Figures: arXiv 2508.03854 and the post on it at pytorch.org (2D), arXiv 2410.21680 (failures). What they do not say,
such as lookups and FLOPs of a request, is chosen here: only the direction of a speed can be asked for.
"""

import math
from dataclasses import replace

import pytest

from foundation.parallel.cluster import HARDWARE, Cluster
from foundation.parallel.cost import best_group, group_cost, group_costs
from foundation.parallel.reliability import (
    checkpoint_interval,
    lost_share,
    mean_time_between_failures_h,
    predicted_ettr,
)
from foundation.parallel.traffic import TableUse, Workload

TABLE_BYTES = 1.7e12
WIDTH = 128
REQUESTS_A_GPU = 2048
FLAT_IMBALANCE_AT_256 = 5.70
HOT_SHARE = (FLAT_IMBALANCE_AT_256 - 1) / 255  # one row with share p makes an imbalance of 1 + p (N - 1)


def exfm(gpus):
    """A model with tables of 1.7 TB on nodes of 8."""
    table = TableUse(
        name="all",
        rows=round(TABLE_BYTES / 4 / WIDTH),
        width=WIDTH,
        features=500,
        lookups=2000.0,
        hot_rows=(0,),
        hot_shares=(HOT_SHARE,),
    )
    workload = Workload(
        tables=(table,),
        dense_parameters=10**9,
        flops_per_request=12e9,
        activation_bytes_per_request=4e6,
        rows_per_request=1.0,
        requests=REQUESTS_A_GPU * gpus,
        scored_apart=False,
        precision="bfloat16",
    )
    return workload, Cluster(gpus, 8, HARDWARE["h100"])


def test_imbalance_grows_with_the_group():
    workload, _ = exfm(1024)
    found = [workload.imbalance(size) for size in (64, 256, 512, 1024)]
    assert found == sorted(found)
    assert found[1] == pytest.approx(FLAT_IMBALANCE_AT_256, rel=1e-3)
    assert 1.57 <= found[0] < FLAT_IMBALANCE_AT_256  # 1.57 was measured with 4 groups of 64


def test_four_groups_of_256_gpus_are_faster_and_lighter_than_one():
    workload, cluster = exfm(256)
    smaller = replace(workload, tables=(replace(workload.tables[0], rows=workload.tables[0].rows // 4),))
    flat, grouped = group_cost(smaller, cluster, 256), group_cost(smaller, cluster, 64)
    assert grouped.rows_per_s > flat.rows_per_s  # 1.53 to 2.66 million a second
    assert grouped.memory.total < flat.memory.total  # 72.4 to 54.7 %, although there are four copies of the tables


def test_at_1024_gpus_one_flat_group_runs_out_of_memory_and_groups_do_not():
    workload, cluster = exfm(1024)
    assert not group_cost(workload, cluster, 1024).fits
    best = best_group(group_costs(workload, cluster))
    assert best is not None
    assert best.replicas > 1


def test_groups_keep_their_speed_a_gpu_and_one_flat_group_does_not():
    def per_gpu(gpus, size):
        workload, cluster = exfm(gpus)
        return group_cost(workload, cluster, size).rows_per_s / gpus

    grouped = [per_gpu(gpus, 256) for gpus in (512, 1024, 2048, 4096)]
    assert min(grouped) > 0.9 * grouped[0]  # .356, .676, 1.34, 2.53 million: 100, 96, 95, 90 %
    gains = [per_gpu(gpus, 256) / per_gpu(gpus, gpus) for gpus in (512, 1024)]
    assert 1 < gains[0] < gains[1]  # .356 to .337 million, then .676 to .561


@pytest.mark.parametrize(("gpus", "hours"), [(16384, 1.8), (131072, 0.23)])
def test_failures_of_many_nodes_come_as_often_as_projected(gpus, hours):
    assert mean_time_between_failures_h(gpus // 8, 6.50) == pytest.approx(hours, abs=0.005 if hours < 1 else 0.05)


def test_the_interval_and_the_share_of_productive_time_are_those_of_the_worked_example():
    found = predicted_ettr(save_h=0.01, mtbf_h=7.9, outage_h=0.25 + 0.05)
    assert found.interval_h == pytest.approx(0.397, abs=5e-4)
    assert found.ettr == pytest.approx(0.919, abs=5e-4)


def test_any_other_interval_loses_more():
    best = checkpoint_interval(0.01, 7.9)
    losses = [lost_share(best * factor, save_h=0.01, mtbf_h=7.9, outage_h=0.3) for factor in (0.5, 1.0, 2.0)]
    assert losses[1] == min(losses)
    assert losses[1] == pytest.approx(math.sqrt(2 * 0.01 / 7.9) + 0.3 / 7.9)


def test_where_nothing_fails_no_time_is_lost():
    assert mean_time_between_failures_h(128, 0) == math.inf
    never = predicted_ettr(save_h=0.01, mtbf_h=math.inf, outage_h=0.3)
    assert (never.interval_h, never.ettr) == (math.inf, 1.0)
    assert predicted_ettr(save_h=0.0, mtbf_h=7.9, outage_h=0.0).ettr == 1.0
