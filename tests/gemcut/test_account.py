"""What `gemcut train` says and tracks of the ranks: what was measured, and that the rest was not."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from foundation.config import ParallelConfig
from foundation.goodput.ranks import RanksAccount
from foundation.parallel.sharding import Spread
from gemcut.account import rank_figures, tell_ranks, tell_spread
from gemcut.console import Screen

GIB = 2**30
TWO = RanksAccount(
    rows_per_s=(1234.4, 5678.0),
    data_wait_s=(0.5, 0.25),
    own_s=(9.0, 4.0),
    slowest=0,
    lag=0.125,
    peak_memory_bytes=(GIB, 2 * GIB),
    peak_gpu_memory_bytes=None,
    cpu_joules=None,
    gpu_joules=None,
)
ONE = RanksAccount((7.0,), (0.0,), (1.0,), None, None, (GIB // 2,), None, None, None)


def told(account):
    out = StringIO()
    tell_ranks(account, Screen(people=Console(file=out, width=200)))
    return out.getvalue().splitlines()


def test_ranks_are_told_apart():
    assert told(TWO) == [
        "  rows/s by rank 1,234, 5,678",
        "  slowest rank 0, which the others wait for 12.5% of the time",
        "  peak memory 1.00, 2.00 GiB; energy not measured",
    ]


def test_one_rank_waits_for_nobody():
    assert told(replace(ONE, cpu_joules=1234.5)) == ["  peak memory 0.50 GiB; energy processors 1,234 J"]


def test_on_gpus_the_lag_is_said_not_to_be_measured():
    lines = told(replace(TWO, slowest=None, lag=None, peak_gpu_memory_bytes=(GIB, GIB), gpu_joules=50.0))
    assert lines[1:] == [
        "  slowest rank not measured on GPUs",
        "  peak memory 1.00, 2.00; of the GPU 1.00, 1.00 GiB; energy GPUs 50 J",
    ]


def test_the_tracker_gets_each_rank_and_nothing_that_was_not_measured():
    figures = rank_figures(TWO)
    assert figures["ranks/rows_per_s/1"] == 5678.0
    assert figures["ranks/slowest"] == 0
    assert figures["ranks/lag"] == pytest.approx(0.125)
    assert figures["ranks/peak_memory_bytes/1"] == 2 * GIB
    assert len(figures) == 4 * 2 + 2


def spread_told(spread, **asked):
    out = StringIO()
    tell_spread(spread, ParallelConfig.model_validate(asked), Screen(people=Console(file=out, width=200)))
    return out.getvalue().splitlines()


def test_where_tables_are_is_told_by_kind():
    tables = {
        "user": {"kind": "row_wise", "ranks": None},
        "item": {"kind": "table_wise", "ranks": [1]},
        "brand": {"kind": "row_wise", "ranks": None},
    }
    assert spread_told(Spread(4, 2, 1, tables), sharding_group=2) == [
        "  tables in 2 copies, each over 2 ranks; dense blocks over 1",
        "    row_wise: user, brand",
        "    table_wise: item (1)",
    ]


def test_what_does_not_apply_to_so_few_ranks_is_said():
    alone = Spread(1, 1, 1, {"item": {"kind": "table_wise", "ranks": [0]}})
    assert spread_told(alone) == []
    pins = {"item": {"kind": "row_wise"}}
    assert spread_told(alone, sharding_group=8, dense_shard=4, tables=pins) == [
        "  foundation.parallel.sharding_group: 8 is more than there are; taken as the one rank of this run",
        "  foundation.parallel.dense_shard: 4 is more than there are; taken as the one rank of this run",
        "  foundation.parallel.tables: not used, since one rank holds all tables whole",
    ]
