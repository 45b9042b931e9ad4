"""What each rank did in a pass, and which one the others waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import torch

from foundation.goodput.energy import EnergyMeter
from foundation.goodput.memory import peak_gpu_memory_bytes, peak_memory_bytes
from foundation.goodput.own_time import own_seconds

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RankMeasures:
    """One rank's part of a pass; of its last process alone, if there were several.

    Attributes:
        seconds: of the pass.
        num_rows: that it learned from.
        data_wait_s: that it waited for its reader.
        own_s: that its training thread was on a core or ready for one, plus `data_wait_s`: what it did not wait for
            others. None on a GPU, where it is not measured.
        peak_memory_bytes: of the machine's memory.
        peak_gpu_memory_bytes: of tensors on its GPU; None on a CPU.
        is_first_of_machine: whether it answers for the machine's processors.
        cpu_joules: of these; None where not measured, and on the other ranks.
        gpu_joules: of its GPU; None where not measured.
    """

    seconds: float
    num_rows: int
    data_wait_s: float
    own_s: float | None
    peak_memory_bytes: int
    peak_gpu_memory_bytes: int | None
    is_first_of_machine: bool
    cpu_joules: float | None
    gpu_joules: float | None


class RankMeter:
    """Measures this rank from where it is entered to where it is left; for the thread that trains.

    Args:
        device: of this rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_first_of_machine = os.environ.get("LOCAL_RANK", "0") == "0"
        self._energy = EnergyMeter(device, is_first_of_machine=self._is_first_of_machine)
        self._began_s, self._own_s = 0.0, 0.0

    def measures(self, *, num_rows: int, data_wait_s: float) -> RankMeasures:
        """Of the time until now."""
        own = own_seconds() - self._own_s + data_wait_s
        return RankMeasures(
            seconds=time.monotonic() - self._began_s,
            num_rows=num_rows,
            data_wait_s=data_wait_s,
            own_s=own if self._device.type == "cpu" else None,
            peak_memory_bytes=peak_memory_bytes(),
            peak_gpu_memory_bytes=peak_gpu_memory_bytes(self._device),
            is_first_of_machine=self._is_first_of_machine,
            cpu_joules=self._energy.cpu_joules(),
            gpu_joules=self._energy.gpu_joules(),
        )

    def __enter__(self) -> Self:
        self._energy.__enter__()
        self._began_s, self._own_s = time.monotonic(), own_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._energy.__exit__(kind, error, trace)


@dataclass(frozen=True, slots=True)
class RanksAccount:
    """A pass by rank: place r of a tuple is rank r's.

    Attributes:
        rows_per_s: learned from.
        data_wait_s: that a rank waited for its reader.
        own_s: as `RankMeasures` has it; None where not every rank has.
        slowest: the rank with most of it; None of a single rank, and where not measured.
        lag: share of the time that the others, on average, waited for the slowest rank s: the mean over r other than s
            of (own_s of s - own_s of r) / seconds, in [0, 1]. Being late in turns evens out over a pass, and is not in
            it. None where `slowest` is.
        peak_memory_bytes: of the machine's memory.
        peak_gpu_memory_bytes: None where there are no GPUs.
        cpu_joules: of the processors of all machines, while the pass lasted; None where not every one tells.
        gpu_joules: of the GPUs of all ranks; None where not every one tells.

    Source: ours.
    """

    rows_per_s: tuple[float, ...]
    data_wait_s: tuple[float, ...]
    own_s: tuple[float, ...] | None
    slowest: int | None
    lag: float | None
    peak_memory_bytes: tuple[int, ...]
    peak_gpu_memory_bytes: tuple[int, ...] | None
    cpu_joules: float | None
    gpu_joules: float | None


def ranks_account(ranks: Sequence[RankMeasures]) -> RanksAccount:
    """The account of all ranks' measures, in the order of the ranks; at least one."""
    own = _all_of([rank.own_s for rank in ranks])
    gpu_memory = _all_of([rank.peak_gpu_memory_bytes for rank in ranks])
    cpu = _all_of([rank.cpu_joules for rank in ranks if rank.is_first_of_machine])
    gpu = _all_of([rank.gpu_joules for rank in ranks])
    slowest = own.index(max(own)) if own and len(own) > 1 else None
    return RanksAccount(
        rows_per_s=tuple(rank.num_rows / max(rank.seconds, 1e-9) for rank in ranks),
        data_wait_s=tuple(rank.data_wait_s for rank in ranks),
        own_s=own,
        slowest=slowest,
        lag=_lag(own, slowest, max(rank.seconds for rank in ranks)) if own and slowest is not None else None,
        peak_memory_bytes=tuple(rank.peak_memory_bytes for rank in ranks),
        peak_gpu_memory_bytes=gpu_memory,
        cpu_joules=sum(cpu) if cpu else None,
        gpu_joules=sum(gpu) if gpu else None,
    )


def _lag(own: Sequence[float], slowest: int, seconds: float) -> float:
    waited = [own[slowest] - other for rank, other in enumerate(own) if rank != slowest]
    return sum(waited) / len(waited) / max(seconds, 1e-9)


def _all_of(values: Sequence[Value | None]) -> tuple[Value, ...] | None:
    """All of them, or None where one is missing."""
    found = tuple(value for value in values if value is not None)
    return found if len(found) == len(values) else None
