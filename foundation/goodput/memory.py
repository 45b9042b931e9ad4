"""The most memory that a process has had at once."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
KIB = 1024


def peak_memory_bytes(status: Path = STATUS) -> int:
    """Most bytes of this process in the machine's memory.

    Linux says it of the program that runs (`VmHWM`). `ru_maxrss`, which is taken elsewhere, counts what the process was
    before it became this program too: a rank that a large launcher started would never be below the launcher.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * KIB


def peak_gpu_memory_bytes(device: torch.device) -> int | None:
    """Most bytes of tensors on this process's GPU; None where it has none."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
