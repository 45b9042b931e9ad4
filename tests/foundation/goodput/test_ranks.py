"""Accounts of ranks that were worked out by hand, and a meter on the thread of a test."""

import time
from dataclasses import replace

import pytest
import torch

from foundation.goodput.memory import peak_gpu_memory_bytes, peak_memory_bytes
from foundation.goodput.own_time import own_seconds
from foundation.goodput.ranks import RankMeasures, RankMeter, ranks_account

CPU = torch.device("cpu")
TICK_S = 0.02  # schedulers may count in ticks
RANK = RankMeasures(
    seconds=10.0,
    num_rows=200,
    data_wait_s=1.0,
    own_s=4.0,
    peak_memory_bytes=7,
    peak_gpu_memory_bytes=None,
    is_first_of_machine=True,
    cpu_joules=None,
    gpu_joules=None,
)


def test_the_lag_is_what_the_others_waited_for_the_slowest_on_average():
    ranks = [RANK, replace(RANK, own_s=9.0, num_rows=100), replace(RANK, own_s=7.0), replace(RANK, own_s=8.0)]
    account = ranks_account(ranks)
    assert account.slowest == 1
    assert account.lag == pytest.approx((5 + 2 + 1) / 3 / 10)
    assert account.rows_per_s == (20, 10, 20, 20)
    assert account.own_s == (4, 9, 7, 8)
    assert account.peak_memory_bytes == (7, 7, 7, 7)
    assert account.peak_gpu_memory_bytes is None


def test_ranks_that_are_alike_do_not_wait():
    assert ranks_account([RANK, RANK]).lag == 0


@pytest.mark.parametrize("ranks", [[RANK], [RANK, replace(RANK, own_s=None)]])
def test_a_single_rank_and_ranks_that_do_not_measure_have_no_slowest(ranks):
    account = ranks_account(ranks)
    assert (account.slowest, account.lag) == (None, None)


def test_energy_of_a_machine_is_counted_once_and_a_part_is_not_the_whole():
    first, second = replace(RANK, cpu_joules=5.0, gpu_joules=1.0), replace(RANK, is_first_of_machine=False)
    other = replace(RANK, cpu_joules=6.0, gpu_joules=2.0)
    assert ranks_account([first, second, other]).cpu_joules == 11
    assert ranks_account([first, second, other]).gpu_joules is None, "the second rank's GPU did not tell"
    assert ranks_account([first, other]).gpu_joules == 3
    assert ranks_account([first, RANK]).cpu_joules is None, "the second machine did not tell"


def test_own_time_is_the_thread_s_work_and_the_wait_for_its_reader():
    with RankMeter(CPU) as meter:
        done = time.thread_time() + 0.2
        while time.thread_time() < done:
            pass
        measured = meter.measures(num_rows=3, data_wait_s=0.5)
    assert measured.own_s >= 0.5 + 0.2 - TICK_S
    assert (measured.num_rows, measured.data_wait_s, measured.peak_gpu_memory_bytes) == (3, 0.5, None)


def test_the_scheduler_s_two_times_are_added(tmp_path):
    told = tmp_path / "schedstat"
    told.write_text("1500000000 250000000 77\n")
    assert own_seconds(told) == 1.75


@pytest.mark.parametrize("text", [None, "", "a b c", "0 0 0\n"])
def test_without_a_scheduler_that_tells_it_is_the_time_on_a_core(tmp_path, text):
    told = tmp_path / "schedstat"
    if text is not None:
        told.write_text(text)
    before = time.thread_time()
    assert before <= own_seconds(told) <= time.thread_time()


def test_peak_memory_stays_when_memory_is_given_back():
    size = 2**26
    there = bytearray(size)
    with_it = peak_memory_bytes()
    assert with_it >= len(there)
    del there
    assert peak_memory_bytes() >= with_it - size // 8  # Linux counts pages by core, and adds them up now and then


def test_peak_memory_is_read_in_kibibytes(tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t    12 kB\n")
    assert peak_memory_bytes(status) == 12 * 1024
    assert peak_memory_bytes(tmp_path / "none") > 2**20, "what getrusage says"


def test_a_cpu_has_no_gpu_memory():
    assert peak_gpu_memory_bytes(CPU) is None
