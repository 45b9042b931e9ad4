"""One GPU, in under five minutes: our kernels against references, then step time, MFU and memory.

`python -m benchmarks.gpu_check`, from the repository. It needs torch (with Triton, which comes with it for a GPU),
numpy and this checkout alone: attention, and a network of our blocks on `nn.Embedding`, are always checked and timed;
the foundation model, on TorchRec's tables, where the project's own packages are there, and else it is said what is
missing. JSON and tables go to `benchmarks/results/`.

Exit codes: 0 every check held, 1 one did not, 2 no GPU, so that nothing was measured, 3 a wrong command line.
`--device cpu --small` rehearses the script where there is no GPU: it says nothing of one, and writes only to `--out`.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import torch

from benchmarks.gpu_attention import check_attention, time_attention
from benchmarks.gpu_network import check_network, time_network
from benchmarks.gpu_timing import FULL, SMALL, TF32, Check, Size, Timed, products_as
from foundation.efficiency.peak import matmul_peak, memory_bandwidth

HELD, BROKEN, NO_GPU, USAGE = 0, 1, 2, 3
RESULTS = Path(__file__).parent / "results"
KINDS = {"cuda": ("float32", TF32, "bfloat16"), "cpu": ("float32",)}
CHECKED_KINDS = {"cuda": ("float64", "float32", TF32, "bfloat16"), "cpu": ("float64", "float32")}
PACKAGES = ("torch", "triton", "numpy", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu")
MIB = 2**20

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        peaks: FLOPs a second of matrix products, by kind of number.
        skipped: why, by part.
        failed: what went wrong, by part: what it would have found is missing.
    """

    machine: dict[str, Any]
    is_rehearsal: bool
    peaks: dict[str, float] = field(default_factory=dict)
    memory_bytes_per_s: float = 0.0
    checks: list[Check] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether every check was made and held."""
        return not self.failed and all(check.holds for check in self.checks)


def measure(device: torch.device, size: Size) -> Report:
    """All parts, one after the other; one that fails does not keep the others from being made."""
    started = time.perf_counter()
    report = Report(machine_of(device), is_rehearsal=device.type != "cuda")

    def peaks() -> None:
        for kind in KINDS[device.type]:
            with products_as(kind) as dtype:
                report.peaks[kind] = matmul_peak(device, dtype).flops_per_s
        report.memory_bytes_per_s = memory_bandwidth(device)

    parts: dict[str, Callable[[], object]] = {
        "peaks": peaks,
        "attention": lambda: report.checks.extend(check_attention(device, CHECKED_KINDS[device.type])),
        "attention, timed": lambda: report.timed.extend(time_attention(device, size, report.peaks)),
        "network": lambda: report.checks.extend(check_network(device)),
        "network, timed": lambda: report.timed.extend(time_network(device, size, report.peaks)),
        "foundation model": lambda: _model(report, device, size),
    }
    for name, part in parts.items():
        said(f"{time.perf_counter() - started:6.1f} s  {name}")
        try:
            part()
        except Exception as error:  # a GPU may be at hand for minutes: one part must not lose what the others found
            log.exception(name)
            report.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    report.seconds = time.perf_counter() - started
    return report


def _model(report: Report, device: torch.device, size: Size) -> None:
    if report.is_rehearsal and torch.cuda.is_available():
        report.skipped["foundation model"] = "it would train on the GPU"
        return
    try:
        from benchmarks.gpu_model import check_and_time_model
    except (ImportError, OSError) as error:  # OSError: a library of another build of torch
        report.skipped["foundation model"] = f"{error}: the project's own packages are not all here"
        return
    checks, timed = check_and_time_model(device, size, report.peaks)
    report.checks += checks
    report.timed += timed


def machine_of(device: torch.device) -> dict[str, Any]:
    """What was measured on, without the name of the host."""
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found: dict[str, Any] = {"device": platform.processor() or platform.machine(), "versions": versions}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"device": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
        found["compute_capability"] = f"{properties.major}.{properties.minor}"
    return found


def tables(report: Report) -> str:
    """All of it for people, as Markdown."""
    machine, rows = report.machine, [f"# GPU check: {report.machine['device']}", ""]
    if report.is_rehearsal:
        rows += ["**A rehearsal on a CPU: it says nothing of a GPU.**", ""]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    rows += [f"{versions}; {report.seconds:.0f} s", ""]
    peaks = ", ".join(f"{kind} {peak / 1e12:.1f}" for kind, peak in report.peaks.items())
    rows += [f"Peaks, measured: {peaks} TFLOP/s; memory {report.memory_bytes_per_s / 1e9:,.0f} GB/s", ""]
    rows += table(
        ("check", "error", "at most", ""),
        [(c.name, f"{c.error:.2g}", f"{c.tolerance:.2g}", "holds" if c.holds else "BROKEN") for c in report.checks],
    )
    rows += table(
        ("forward and backward", "ms, median [range]", "TFLOP", "MFU", "peak MiB"),
        [
            (
                one.name,
                str(one.ms),
                f"{one.flops / 1e12:.2g}",
                f"{one.mfu:.1%}",
                "-" if one.peak_bytes is None else f"{one.peak_bytes / MIB:,.0f}",
            )
            for one in report.timed
        ],
    )
    rows += [f"- skipped, {part}: {why}" for part, why in report.skipped.items()]
    rows += [f"- FAILED, {part}: {why}" for part, why in report.failed.items()]
    return "\n".join(rows) + "\n"


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, in columns of one width each."""
    cells = [columns, *lines]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    rows = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return [f"| {rows[0]} |", f"| {' | '.join('-' * width for width in widths)} |", *(f"| {r} |" for r in rows[1:]), ""]


def write(report: Report, folder: Path) -> Path:
    """`gpu_check_DEVICE_DATE.json` and `.md`; the path of the first."""
    device = "_".join(str(report.machine["device"]).lower().split()).replace("/", "_")
    name = f"gpu_check_{'cpu_rehearsal' if report.is_rehearsal else device}_{datetime.now(UTC):%Y-%m-%d}"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".md", tables(report)), (".json", json.dumps(asdict(report), indent=2) + "\n")):
        partial = folder / f".{name}{suffix}.partial"
        partial.write_text(text)
        partial.replace(folder / f"{name}{suffix}")
    return folder / f"{name}.json"


def said(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = _Arguments(prog="python -m benchmarks.gpu_check", description="Kernels, step time, MFU, memory of a GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="`cpu` rehearses the script")
    parser.add_argument("--small", action="store_true", help="sizes that take seconds on a CPU")
    parser.add_argument("--out", type=Path, help="folder of the results; benchmarks/results for a GPU")
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        said("no GPU here: nothing was measured, and nothing is claimed")
        return NO_GPU
    report = measure(torch.device(chosen.device), SMALL if chosen.small else FULL)
    print(tables(report))
    folder = chosen.out or (None if report.is_rehearsal else RESULTS)
    if folder is not None:
        said(f"written: {write(report, folder)}")
    following = "keep the two files in the repository" if report.holds else "mend what is BROKEN or FAILED"
    said(f"next: {'the same on a machine with a GPU, without --device' if report.is_rehearsal else following}")
    return HELD if report.holds else BROKEN


if __name__ == "__main__":
    sys.exit(main())
