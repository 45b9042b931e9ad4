"""Joules, where the machine tells: of its processors (RAPL) and of a rank's GPU (NVML); elsewhere "not measured"."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

POWERCAP = Path("/sys/class/powercap")
READ_EVERY_S = 30.0
"""A counter is back at 0 after 65 kJ on some machines: two minutes at 500 W."""

MICRO, MILLI = 1e-6, 1e-3


class PackageEnergy:
    """Joules of all processor packages of this machine since it was made, whoever used them.

    Only whole packages are counted: their cores, and where a machine has it "psys", are the same joules once more.
    Linux lets only root read the counters.

    Args:
        root: folder of Linux's power capping interface.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        names = sorted(root.glob("*/name"))
        self._packages = [name.parent for name in names if name.read_text().strip().startswith("package")]
        self._last = [_microjoules(package) for package in self._packages]
        self._total = 0.0

    def joules(self) -> float | None:
        """So far; None where no package, or not every one, tells.

        To be asked more often than a counter comes back to 0.
        """
        if not self._packages:
            return None
        for place, package in enumerate(self._packages):
            before, now = self._last[place], _microjoules(package)
            if before is None or now is None:
                return None
            again = _number(package / "max_energy_range_uj") or 0 if now < before else 0
            self._total += (now - before + again) * MICRO
            self._last[place] = now
        return self._total


class GpuEnergy:
    """Joules of one GPU since it was made; NVML counts them, in this process or another."""

    def __init__(self, device: torch.device) -> None:
        self._read = _nvml_millijoules(device) if device.type == "cuda" else None
        self._first = self._read() if self._read else 0

    def joules(self) -> float | None:
        """So far; None on a CPU, without `pynvml`, and of a GPU that does not count."""
        return (self._read() - self._first) * MILLI if self._read else None


class EnergyMeter:
    """Both, while it is entered; a thread asks often enough for no turn of a counter to be missed.

    Args:
        device: of this rank.
        is_first_of_machine: whether this rank answers for the machine's processors.
        root: see `PackageEnergy`.
    """

    def __init__(self, device: torch.device, *, is_first_of_machine: bool, root: Path = POWERCAP) -> None:
        self._packages = PackageEnergy(root) if is_first_of_machine else None
        self._gpu = GpuEnergy(device)
        self._left = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._ask, name="energy", daemon=True)

    def cpu_joules(self) -> float | None:
        """Of the machine's processors; None where not measured, and on ranks that do not answer for them."""
        if self._packages is None:
            return None
        with self._lock:
            return self._packages.joules()

    def gpu_joules(self) -> float | None:
        """Of this rank's GPU; None where not measured."""
        return self._gpu.joules()

    def _ask(self) -> None:
        while not self._left.wait(READ_EVERY_S):
            self.cpu_joules()

    def __enter__(self) -> Self:
        if self.cpu_joules() is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()


def _microjoules(package: Path) -> int | None:
    return _number(package / "energy_uj")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _nvml_millijoules(device: torch.device) -> Any:
    """How to ask NVML for what a GPU has used since its driver was loaded; None where that can not be asked."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        # Not by number: NVML counts GPUs that CUDA_VISIBLE_DEVICES hides.
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
