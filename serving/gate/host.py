"""What the host is, and whether it was quiet: a run on a busy host says nothing against a student."""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

try:
    import resource
except ImportError:  # not on Windows, where the gate runs without these signs
    resource = None

_SIDE = 256
_MOST_SPREAD = 1.25
_LEAST_CPU_SHARE = 0.9
_MOST_SWITCHES_PER_CPU_S = 50.0
_MOST_WAITED_SHARE = 0.2
_FEW_SWITCHES = 5


class Calibration(BaseModel):
    """Speed of one thread at a matrix product of which the time is known to be constant on a quiet host."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gflops: float = Field(description="Of the median product.")
    spread: float = Field(description="Median time over the fastest.")
    cpu_share: float = Field(description="Processor time over wall time; below 1 while others hold the processor.")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the scheduler says of this thread so far.

    Attributes:
        cpu_ns: processor time.
        waited_ns: time spent ready to run and not running; 0 where the system does not tell.
        switches: times it was made to give up the processor.
    """

    cpu_ns: int
    waited_ns: int
    switches: int

    def since(self, earlier: Usage) -> Usage:
        """The usage between two moments."""
        return Usage(self.cpu_ns - earlier.cpu_ns, self.waited_ns - earlier.waited_ns, self.switches - earlier.switches)


class Host(BaseModel):
    """The host of a run: what it is, and how quiet it was."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processor: str
    num_cpus: int
    pinned_cpu: int | None = Field(description="The one processor the worker ran on; None if it was not pinned.")
    system: str
    versions: dict[str, str]
    threads: int = Field(description="Threads of the runtime and of the matrix library.")
    before: Calibration
    after: Calibration
    cpu_s: float = Field(description="Processor time of the open loop in seconds.")
    waited_s: float = Field(description="Time of the open loop that the worker was ready and others ran, in seconds.")
    involuntary_switches: int = Field(description="Times the worker was made to give up the processor.")


def pin_to_one_cpu() -> int | None:
    """Keep this process on the last processor it may use; None where there is no choice or no way."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = os.sched_getaffinity(0)
    chosen = max(allowed)
    try:
        os.sched_setaffinity(0, {chosen})
    except OSError:  # a sandbox may forbid it; the report says that nothing was pinned
        return None
    return chosen


def calibrate(duration_s: float = 0.25) -> Calibration:
    """Time a float32 product of two 256 x 256 matrices for a while."""
    matrix = np.ones((_SIDE, _SIDE), dtype=np.float32)
    for _ in range(20):  # clocks rise and pages are touched
        np.matmul(matrix, matrix)
    times_ns: list[int] = []
    cpu_ns, begun_ns = time.thread_time_ns(), time.perf_counter_ns()
    while (before_ns := time.perf_counter_ns()) - begun_ns < duration_s * 1e9:
        np.matmul(matrix, matrix)
        times_ns.append(time.perf_counter_ns() - before_ns)
    wall_ns = time.perf_counter_ns() - begun_ns
    median_ns = float(np.median(times_ns))
    return Calibration(
        gflops=2.0 * _SIDE**3 / median_ns,
        spread=median_ns / min(times_ns),
        cpu_share=min(1.0, (time.thread_time_ns() - cpu_ns) / wall_ns),  # two clocks, read one after the other
    )


def usage() -> Usage:
    """What the scheduler says of this thread now."""
    switches = 0
    if resource is not None:
        switches = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nivcsw
    try:
        waited_ns = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        waited_ns = 0
    return Usage(time.thread_time_ns(), waited_ns, switches)


def describe(*, pinned_cpu: int | None, before: Calibration, after: Calibration, used: Usage) -> Host:
    """The host's part of a report."""
    return Host(
        processor=_processor(),
        num_cpus=os.cpu_count() or 1,
        pinned_cpu=pinned_cpu,
        system=f"{platform.system()} {platform.release()}",
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "onnxruntime")},
        },
        threads=1,
        before=before,
        after=after,
        cpu_s=used.cpu_ns / 1e9,
        waited_s=used.waited_ns / 1e9,
        involuntary_switches=used.switches,
    )


def busy_signs(host: Host) -> tuple[str, ...]:
    """What says that others used the processor during the run; empty if nothing does."""
    signs: list[str] = []
    for name, product in (("before", host.before), ("after", host.after)):
        if product.cpu_share < _LEAST_CPU_SHARE:
            signs.append(f"{name} the run others held the processor for {1 - product.cpu_share:.0%} of the time")
        if product.spread > _MOST_SPREAD:
            signs.append(f"{name} the run a constant product took {product.spread:.2f} times its fastest in the median")
    speeds = sorted([host.before.gflops, host.after.gflops])
    if speeds[1] > _MOST_SPREAD * speeds[0]:
        signs.append(f"the processor's speed changed from {host.before.gflops:.0f} to {host.after.gflops:.0f} GFLOP/s")
    switches = host.involuntary_switches
    if switches > _FEW_SWITCHES and switches > _MOST_SWITCHES_PER_CPU_S * host.cpu_s:
        signs.append(f"the worker was made to give up the processor {switches} times in {host.cpu_s:.2f} s of work")
    if host.waited_s > _MOST_WAITED_SHARE * host.cpu_s:
        signs.append(f"the worker waited {host.waited_s:.2f} s for the processor in {host.cpu_s:.2f} s of work")
    return tuple(signs)


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far; 0 where the system does not tell."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
