"""Seconds from the command to the end of the first training step, cold and warm, beside importing torch and TorchRec.

`python -m benchmarks.start_up PROJECT` starts `gemcut train` again and again, and stops it after a step. Rounds take
turns with three starts:

- cold: as after an installation. Our code without compiled bytecode, no `store.cache`, no compiled kernels (empty
  folders for Triton, Inductor and torch's extensions); and files of Python, its packages, our code and the store are
  put out of the page cache, as far as no other process uses them and the kernel does it when asked (`posix_fadvise`).
- warm: the same command again, of a training that has no checkpoint yet.
- import: `import torch, torchrec` and nothing else, warm; under torchrun where there are several ranks.

Beside the seconds on the clock stand those that the ranks kept a CPU busy before the step, which a machine with other
work to do changes less. Linux only. The project's work folder is not touched: a temporary one links to its store.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.command import ProjectArgument, SetOption, command_line, run
from foundation.goodput.journal import Began, Saved, read_journal
from gemcut.project import load_project
from gemcut.workspace import Workspace

PACKAGES = ("gemcut", "transfer", "foundation", "eval", "serving")
KERNEL_FOLDERS = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
PATIENCE_S = 300.0
IMPORT = "import time, torch, torchrec; print(time.time(), time.process_time(), flush=True)\n"

Kind = Literal["cold", "warm", "import"]
KINDS: tuple[Kind, ...] = ("cold", "warm", "import")


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        seconds: from the command to the end of the first step; of kind `import`, to the end of the imports.
        cpu_s: for which CPUs worked until the first step began (the imports were done), for all ranks together and not
            for torchrun itself.
        phases: the parts of `seconds`.
    """

    seconds: float
    cpu_s: float
    phases: dict[str, float]


@dataclass(frozen=True, slots=True)
class Bench:
    """A project that is started.

    Attributes:
        root: a temporary folder: `code/`, `work/`, `kernels/`.
        project: the project file.
        overrides: `--set` values.
        store: its request store.
    """

    root: Path
    project: Path
    overrides: tuple[str, ...]
    store: Path

    def set_up(self) -> None:
        """Copy our code, and link to the store."""
        ours = Path(__file__).parents[1]
        for package in PACKAGES:
            shutil.copytree(ours / package, self.root / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "work").mkdir()
        (self.root / "work" / "store").symlink_to(self.store.resolve())
        (self.root / "imports.py").write_text(IMPORT)

    def start(self, kind: Kind, num_ranks: int) -> Start:
        """Start once; nothing of it runs on afterwards."""
        shutil.rmtree(self.root / "work" / "foundation", ignore_errors=True)
        if kind == "cold":
            self.forget()
            self._drop_pages()
        if kind == "import":
            return self._import(num_ranks)
        settings = (f"workdir={self.root / 'work'}", "foundation.training.checkpoint_every=1", *self.overrides)
        sets = [word for setting in settings for word in ("--set", setting)]
        command = [*_launched(num_ranks), "-m", "gemcut", "train", "-p", str(self.project.resolve()), *sets]
        began_s = time.time()
        with (self.root / "said").open("w") as said:
            process = subprocess.Popen(command, env=self._environment(), cwd=self.root, stdout=said, stderr=said)
        try:
            return self._first_step(process, began_s, num_ranks)
        finally:
            process.terminate()  # all ranks finish their step, save and leave
            process.wait(PATIENCE_S)

    def _first_step(self, process: subprocess.Popen[bytes], began_s: float, num_ranks: int) -> Start:
        """Wait for the journal to tell of the save after the first step."""
        cpu_s: float | None = None
        while time.time() - began_s < PATIENCE_S and process.poll() is None:
            events = read_journal(self.root / "work" / "foundation" / "journal.jsonl")
            began = [event for event in events if isinstance(event, Began)]
            saved = [event for event in events if isinstance(event, Saved)]
            if began and cpu_s is None:
                ranks = [process.pid] if num_ranks == 1 else _children(process.pid)
                cpu_s = sum(_cpu_s(rank) for rank in ranks)
            if began and saved and cpu_s is not None:
                ended_s = saved[0].time_s - saved[0].stall_s
                before = {"launch": began[0].started_s - began_s}
                phases = before | began[0].phases | {"first step": ended_s - began[0].time_s}
                return Start(ended_s - began_s, cpu_s, phases)
            time.sleep(0.01)
        raise RuntimeError((self.root / "said").read_text())

    def _import(self, num_ranks: int) -> Start:
        command = [*_launched(num_ranks), str(self.root / "imports.py")]
        began_s = time.time()
        told = subprocess.run(command, env=self._environment(), cwd=self.root, stdout=subprocess.PIPE, check=True)
        ended_s, cpu_s = zip(*(map(float, line.split()) for line in told.stdout.splitlines()), strict=True)
        return Start(max(ended_s) - began_s, sum(cpu_s), {})

    def _environment(self) -> dict[str, str]:
        folders = {name: str(self.root / "kernels" / name) for name in KERNEL_FOLDERS}
        known = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        return known | folders | {"PYTHONPATH": str(self.root / "code")}

    def forget(self) -> None:
        """Delete everything of ours that a first start does not have."""
        for folder in (self.root / "code").rglob("__pycache__"):
            shutil.rmtree(folder)
        for folder in (self.root / "work" / "store.cache", self.root / "kernels"):
            shutil.rmtree(folder, ignore_errors=True)

    def _drop_pages(self) -> None:
        installed = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}
        for file in _files(*installed, self.root / "code", self.store.resolve()):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _launched(num_ranks: int) -> list[str]:
    if num_ranks == 1:
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _cpu_s(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _files(*folders: Path) -> Iterator[Path]:
    return (path for folder in folders for path in folder.rglob("*") if path.is_file())


def measure(bench: Bench, num_ranks: int, rounds: int) -> dict[Kind, list[Start]]:
    """So many starts of each kind, in turns."""
    bench.start("warm", num_ranks)  # of whatever else is compiled or read by a first start on this machine
    found: dict[Kind, list[Start]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS:
            found[kind].append(bench.start(kind, num_ranks))
            last = found[kind][-1]
            said = f"{num_ranks} ranks, round {number + 1}: {kind} {last.seconds:.1f} s, {last.cpu_s:.1f} s of CPU"
            print(said, file=sys.stderr)
    return found


def summary(found: Mapping[Kind, list[Start]]) -> dict[str, object]:
    """Median and range by kind, medians of the parts, and how warm compares with the other two, round by round."""
    told: dict[str, object] = {}
    for kind, starts in found.items():
        parts = {name: _median([start.phases[name] for start in starts]) for name in starts[0].phases}
        told[kind] = {
            "seconds": _spread([start.seconds for start in starts]),
            "cpu_s": _spread([start.cpu_s for start in starts]),
            "parts": parts,
        }
    compared: tuple[tuple[Kind, Kind], ...] = (("cold", "warm"), ("warm", "import"))
    for over, under in compared:
        pairs = list(zip(found[over], found[under], strict=True))
        told[f"{over}_over_{under}"] = {
            "seconds": _spread([one.seconds / other.seconds for one, other in pairs]),
            "cpu_s": _spread([one.cpu_s / other.cpu_s for one, other in pairs]),
        }
    return told


def _spread(values: Sequence[float]) -> dict[str, object]:
    return {"median": _median(values), "range": [round(min(values), 3), round(max(values), 3)]}


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


app = command_line()


@app.command(help=__doc__)
def start_up(
    project: ProjectArgument,
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each kind.")] = 5,
    ranks: Annotated[list[int] | None, typer.Option(min=1, help="Processes; may be repeated. Default 1 and 2.")] = None,
    overrides: SetOption = None,
) -> None:
    """See the module."""
    loaded = load_project(project, overrides or ())
    told: dict[str, object] = {"cpus": os.cpu_count(), "rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="gemcut-start-") as folder:
        bench = Bench(Path(folder), project, tuple(overrides or ()), Workspace(loaded).store)
        bench.set_up()
        for num_ranks in ranks or (1, 2):
            found = summary(measure(bench, num_ranks, rounds))
            told[f"ranks_{num_ranks}"] = found
            for name, value in found.items():
                print(num_ranks, name, value)
    print(json.dumps(told))


if __name__ == "__main__":
    run(app)
