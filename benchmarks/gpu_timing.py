"""What the GPU check finds: errors beside what they may be, and times with MFU and memory. torch and numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foundation.efficiency.timing import Measured, interleaved

TF32 = "tf32"
FORWARD_AND_BACKWARD = 3


@dataclass(frozen=True, slots=True)
class Size:
    """Of a batch and what reads it. Histories are log-normal, cut at `longest`."""

    requests: int
    longest: int
    candidates: int
    width: int
    heads: int
    table_rows: int
    hidden: int
    rounds: int


FULL = Size(requests=512, longest=512, candidates=16, width=128, heads=4, table_rows=2_000_000, hidden=512, rounds=11)
SMALL = Size(requests=6, longest=24, candidates=3, width=16, heads=2, table_rows=200, hidden=16, rounds=2)
CHECKED = Size(requests=24, longest=150, candidates=5, width=64, heads=2, table_rows=1000, hidden=64, rounds=1)
"""Of what is compared with float64 on a CPU, which takes its time."""


@dataclass(frozen=True, slots=True)
class Check:
    """A largest error over the largest value of its reference, and how much it may be."""

    name: str
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Not where the error is NaN."""
        return self.error <= self.tolerance


@dataclass(frozen=True, slots=True)
class Timed:
    """Forward and backward; of a step also the optimizers.

    Attributes:
        ms: median and range of the rounds.
        flops: useful, of all passes together.
        mfu: flops / seconds / the peak that was measured for this type of number.
        peak_bytes: most of the GPU's memory that tensors had meanwhile; None on a CPU.
    """

    name: str
    ms: Measured
    flops: float
    mfu: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Run:
    """Something to time: what it does, FLOPs that it needs, and the peak of its type of number, FLOPs a second."""

    call: Callable[[], object]
    flops: float
    peak: float


def time_runs(runs: dict[str, Run], device: torch.device, rounds: int) -> list[Timed]:
    """Each in turn, round by round; memory of one more call of each."""
    found: list[Timed] = []
    calls = {name: run.call for name, run in runs.items()}
    for name, seconds in interleaved(calls, rounds=rounds, device=device).items():
        milliseconds = Measured.of([1e3 * one for one in seconds])
        mfu = runs[name].flops / (milliseconds.median / 1e3) / runs[name].peak
        found.append(Timed(name, milliseconds, runs[name].flops, mfu, _peak_bytes(calls[name], device)))
    return found


def _peak_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def relative_error(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The worst of several: largest error over largest value.

    Example:
        >>> relative_error([torch.tensor([1.0, -4.0])], [torch.tensor([1.5, -4.0])])
        0.125
    """
    errors = [0.0]
    for one, other in zip(got, expected, strict=True):
        scale = float(other.detach().abs().max()) or 1.0
        difference = one.detach().cpu().double() - other.detach().cpu().double()
        errors.append(float(difference.abs().max()) / scale)
    return float(np.max(errors))  # NaN if there is one


def drawn_lengths(size: Size, seed: int) -> Tensor:
    """[B] int64 events of each request; the first one has none."""
    drawn = np.random.default_rng(seed).lognormal(np.log(size.longest / 4), 1.0, size.requests)
    lengths = torch.from_numpy(drawn.clip(1, size.longest).astype(np.int64))
    lengths[0] = 0
    return lengths


def offsets_of(counts: Tensor) -> Tensor:
    """[B] → [B + 1] int64.

    Example:
        >>> offsets_of(torch.tensor([2, 0, 3])).tolist()
        [0, 2, 2, 5]
    """
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


@contextmanager
def products_as(kind: str) -> Iterator[torch.dtype]:
    """The type of numbers of a kind; float32 is multiplied as TF32 where the kind is that, and nowhere else."""
    settings = torch.backends.cuda.matmul
    before, settings.allow_tf32 = settings.allow_tf32, kind == TF32
    try:
        yield torch.float32 if kind == TF32 else getattr(torch, kind)
    finally:
        settings.allow_tf32 = before
