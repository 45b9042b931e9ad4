"""Times that can be compared: variants in turn, so that what disturbs the machine disturbs them all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch


@dataclass(frozen=True, slots=True)
class Measured:
    """A median of n rounds with its range.

    The range misses the true median with probability 2^(1 - n), whatever the distribution: 1.6 % of 7 rounds.
    """

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Measured:
        """At least one value.

        Example:
            >>> Measured.of([3.0, 1.0, 2.0])
            Measured(median=2.0, low=1.0, high=3.0)
        """
        return Measured(median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def now(device: torch.device) -> float:
    """Seconds of a monotonic clock, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """How long a call takes, the device's work included."""
    started = now(device)
    run()
    return now(device) - started


def interleaved(
    variants: Mapping[str, Callable[[], object]], *, rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each variant in each round, by name; every round runs all, each time another first.

    Each runs once before, unmeasured.
    """
    names = list(variants)
    for name in names:
        variants[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for start in range(rounds):
        for place in range(len(names)):
            name = names[(start + place) % len(names)]
            seconds[name].append(seconds_of(variants[name], device))
    return seconds


def speedup(slow: list[float], fast: list[float]) -> Measured:
    """How many times faster, round by round.

    Example:
        >>> speedup([4.0, 6.0, 8.0], [2.0, 2.0, 2.0])
        Measured(median=3.0, low=2.0, high=4.0)
    """
    return Measured.of([a / b for a, b in zip(slow, fast, strict=True)])
