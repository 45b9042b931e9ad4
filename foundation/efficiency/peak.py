"""What this machine can do at its best: the denominators, measured and not looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from foundation.efficiency.timing import seconds_of

CPU_SIZES, CUDA_SIZES = (512, 1024, 2048), (4096, 8192)
REPEATS = 5
COPIED_BYTES = 2**27


@dataclass(frozen=True, slots=True)
class Peak:
    """The fastest square matrix product.

    Attributes:
        flops_per_s: 2 N³ over the shortest time of it.
        size: N.
        dtype: of both matrices.
        threads: of torch's operators, where it was measured on a CPU.
    """

    flops_per_s: float
    size: int
    dtype: str
    threads: int


def matmul_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> Peak:
    """Measure the peak with the threads that torch is set to; the shortest of several repeats at each of a few sizes.

    float32 is float32: on a GPU torch does not take TF32 unless told to. A second on two cores.
    """
    found: list[Peak] = []
    for size in CUDA_SIZES if device.type == "cuda" else CPU_SIZES:
        left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        best = _shortest(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), device)
        name = str(dtype).removeprefix("torch.")
        found.append(Peak(2 * size**3 / best, size, name, torch.get_num_threads()))
    return max(found, key=lambda peak: peak.flops_per_s)


def memory_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of the fastest copy of 128 MiB."""
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / _shortest(lambda: target.copy_(source), device)


def _shortest(run: Callable[[], object], device: torch.device) -> float:
    run()
    return min(seconds_of(run, device) for _ in range(REPEATS))
