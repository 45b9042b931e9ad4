"""Launches a training of two ranks by torchrun, and kills it at chosen moments; knows nothing of gemcut's inside.

What it looks at from outside: the processes, the checkpoint folder, and the journal's lines.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np

from foundation.training.checkpoint import list_checkpoints
from foundation.training.foundation_model import JOURNAL_FILE

Moment = Literal["starting", "learning", "saving"]
Victim = Literal["rank 0", "rank 1", "all"]
Damage = Literal["truncated", "a bit flipped"]

NUM_RANKS = 2
SAVE_POLL_S, SAVE_S, DEADLINE_S = 0.002, 0.05, 180.0
LAST_LINES = 30


class TortureError(Exception):
    """Something did not happen that should have; says what, and what the training said last."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What to do.

    Attributes:
        share: when within the moment, in [0, 1); of `saving`, 0 is as soon as a save is seen.
        damage: what happens to the newest checkpoint while the job is down.
    """

    moment: Moment
    victim: Victim
    share: float
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class Killed:
    """What was done.

    Attributes:
        time_s: seconds since 1970 UTC.
        num_began: how many attempts had come to a first step.
        in_save: a save was under way, whose checkpoint was not there yet.
        newest: the newest checkpoint that was whole; one more may come where not all ranks were killed.
        damaged: the file that was damaged, of a newer one.
    """

    kill: Kill
    time_s: float
    num_began: int
    in_save: bool
    newest: str | None
    damaged: Path | None = None


def planned(num_kills: int, rng: np.random.Generator) -> list[Kill]:
    """Every third kill hits a save, every fifth a start; half are of one rank, which torchrun starts again.

    The last two are of the whole job, with the newest checkpoint damaged while it is down.
    """
    victims: tuple[Victim, ...] = ("rank 0", "all", "rank 1", "all")
    kills: list[Kill] = []
    for number in range(num_kills - 2):
        moment: Moment = "saving" if number % 3 == 0 else "starting" if number % 5 == 1 else "learning"
        share = 0.0 if moment == "saving" and number % 2 == 0 else float(rng.random())
        kills.append(Kill(moment, victims[int(rng.integers(4))], share))
    rng.shuffle(kills)
    damages: tuple[Damage, ...] = ("truncated", "a bit flipped")
    return kills + [Kill("learning", "all", float(rng.random()), damage) for damage in damages]


@dataclass(slots=True)
class Job:
    """One training, launched at once and as often as needed; nothing of it lives on after the `with` block.

    Args:
        project: its project file; `work/` beside it is its work folder.
        start_s: about how long a rank takes to its first step.
        gap_s: about how long there is between two checkpoints.
    """

    project: Path
    start_s: float = 0.0
    gap_s: float = 0.0
    _launcher: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _num_began: int = field(default=0, init=False)
    _past: set[int | Path] = field(default_factory=set[int | Path], init=False)

    @property
    def folder(self) -> Path:
        """Of the foundation model."""
        return self.project.parent / "work" / "foundation"

    @property
    def checkpoints(self) -> Path:
        """Folder of its checkpoints."""
        return self.folder / "checkpoints"

    @property
    def output(self) -> Path:
        """All that the launches have said."""
        return self.project.parent / "output.txt"

    def launch(self) -> None:
        """`torchrun … -m gemcut train`, which starts ranks again that die."""
        torchrun = Path(sys.executable).with_name("torchrun")
        command = [torchrun, "--standalone", "--nproc-per-node", str(NUM_RANKS), "--max-restarts", "1000"]
        command += ["-m", "gemcut", "train", "-p", self.project]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self.output.open("ab") as output:
            self._launcher = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def finish(self) -> None:
        """Wait until the training has come to its end."""
        self._until(lambda: self._launched.poll() is not None, "the end of the training", may_end=True)
        if self._launched.returncode != 0:
            raise self._error(f"exit code 0, not {self._launched.returncode}")

    def hit(self, kill: Kill) -> Killed:
        """Wait for the moment, kill, and start again what torchrun does not."""
        self._wait_for(kill)
        ranks, saves = self._ranks(), self._saves()
        if kill.victim == "all":
            self._launched.kill()
        for rank, process in ranks.items():
            if kill.victim in ("all", f"rank {rank}"):
                os.kill(process, signal.SIGKILL)
        in_save = any(not (self.checkpoints / save.name.split(".")[1]).is_dir() for save in saves)
        killed = Killed(kill, time.time(), self._count_began(), in_save=in_save, newest=self._newest())
        self._past |= {*ranks.values(), *saves}
        self._num_began = killed.num_began
        if kill.victim == "all":
            self._until(lambda: not self._ranks(past=True), "the end of the ranks", may_end=True)
            self._launched.wait()
            if kill.damage:
                damaged = damage(self.checkpoints, kill.damage)
                killed = replace(killed, damaged=damaged, newest=list_checkpoints(self.checkpoints)[-2].name)
            self.launch()
        return killed

    def __enter__(self) -> Self:
        self.launch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is left."""
        if self._launcher is not None and self._launcher.poll() is None:
            ranks = self._ranks(past=True)
            self._launcher.kill()
            for process in ranks.values():
                os.kill(process, signal.SIGKILL)
            self._launcher.wait()

    def _wait_for(self, kill: Kill) -> None:
        self._until(lambda: len(self._ranks()) == NUM_RANKS, "all ranks")
        if kill.moment == "starting":
            time.sleep(kill.share * self.start_s)
            return
        self._until(lambda: self._count_began() > self._num_began, "a first step")
        if kill.moment == "saving":
            self._until(lambda: bool(self._saves()), "a save", poll_s=SAVE_POLL_S)
            time.sleep(kill.share * SAVE_S)
            return
        seen = self._newest()
        if kill.share >= 0.5:
            self._until(lambda: self._newest() != seen, "a checkpoint")
        if kill.damage:
            self._until(lambda: len(list_checkpoints(self.checkpoints)) > 1, "two checkpoints")
        time.sleep(2 * kill.share % 1 * self.gap_s)

    def _until(self, happened: Callable[[], bool], what: str, *, may_end: bool = False, poll_s: float = 0.05) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not happened():
            if not may_end and self._launched.poll() is not None:
                raise self._error(f"{what}, before the training ended")
            if time.monotonic() > deadline:
                raise self._error(f"{what} within {DEADLINE_S:.0f} s")
            time.sleep(poll_s)

    def _error(self, expected: str) -> TortureError:
        said = "\n".join(self.output.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return TortureError(f"expected {expected}. The training said last:\n{said}")

    @property
    def _launched(self) -> subprocess.Popen[bytes]:
        assert self._launcher is not None, "launched before"
        return self._launcher

    def _ranks(self, *, past: bool = False) -> dict[int, int]:
        """Processes that live, by rank: children of the launcher, also when it is dead; those of the past if asked."""
        return {rank: process for rank, process in processes_of(self.project) if past or process not in self._past}

    def _saves(self) -> set[Path]:
        """Saves that are under way."""
        return {save for save in self.checkpoints.glob(".step-*.partial") if save not in self._past}

    def _newest(self) -> str | None:
        found = list_checkpoints(self.checkpoints)
        return found[-1].name if found else None

    def _count_began(self) -> int:
        journal = self.folder / JOURNAL_FILE
        return journal.read_bytes().count(b'"kind":"began"') if journal.is_file() else 0


def damage(checkpoints: Path, how: Damage) -> Path:
    """Damage the largest file of the newest checkpoint → which one."""
    path = max(list_checkpoints(checkpoints)[-1].glob("*.safetensors"), key=lambda file: file.stat().st_size)
    size = path.stat().st_size
    if how == "truncated":
        os.truncate(path, size // 2)
        return path
    with path.open("r+b") as file:
        file.seek(size // 2)
        (byte,) = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
    return path


def processes_of(project: Path) -> list[tuple[int, int]]:
    """(rank, process) of all that live and train a project; the newest first."""
    found: list[tuple[int, int]] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            settings = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or is another user's
            continue
        ranks = [int(setting[5:]) for setting in settings if setting.startswith(b"RANK=")]
        if str(project).encode() in arguments and ranks:
            found.append((ranks[0], int(folder.name)))
    return sorted(found, key=lambda one: -one[1])
