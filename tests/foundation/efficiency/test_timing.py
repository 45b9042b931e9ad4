import pytest
import torch

from foundation.efficiency import peak
from foundation.efficiency.timing import Measured, interleaved, speedup

CPU = torch.device("cpu")


def test_every_round_runs_every_variant_and_another_first():
    order = []
    variants = {name: lambda n=name: order.append(n) for name in "abc"}
    seconds = interleaved(variants, rounds=4, device=CPU)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_speedup_is_of_pairs_of_the_same_round():
    assert speedup([2.0, 30.0, 4.0], [1.0, 10.0, 1.0]) == Measured(3.0, 2.0, 4.0)


def test_the_peak_is_the_fastest_size(monkeypatch):
    monkeypatch.setattr(peak, "CPU_SIZES", (8, 16))
    monkeypatch.setattr(peak, "_shortest", lambda run, device: 1e-6)
    found = peak.matmul_peak(CPU)
    assert (found.size, found.dtype, found.threads) == (16, "float32", torch.get_num_threads())
    assert found.flops_per_s == pytest.approx(2 * 16**3 / 1e-6)


def test_bandwidth_counts_bytes_both_ways(monkeypatch):
    monkeypatch.setattr(peak, "COPIED_BYTES", 100)
    monkeypatch.setattr(peak, "_shortest", lambda run, device: 2.0)
    assert peak.memory_bandwidth(CPU) == 100.0
