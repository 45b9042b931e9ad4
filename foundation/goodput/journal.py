"""What a job did and when, a line an event, so that a process that was killed has told too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

ALIVE_EVERY_S = 5.0


class _Event(BaseModel):
    """Attributes: `time_s`, seconds since 1970 UTC; `step`, steps of the pass that are done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time_s: float
    step: int


class Began(_Event):
    """A process is about to take its first step; `phases` are the seconds that each part of its start took."""

    kind: Literal["began"] = "began"
    started_s: float
    world_size: int
    phases: dict[str, float]


class Alive(_Event):
    """So far; `wait_s` is how long this process has waited for data since it began."""

    kind: Literal["alive"] = "alive"
    wait_s: float


class Saved(_Event):
    """A checkpoint was taken, if not yet written; training stood still for `stall_s`."""

    kind: Literal["saved"] = "saved"
    stall_s: float


class Ended(_Event):
    """The process left by itself."""

    kind: Literal["ended"] = "ended"
    how: Literal["finished", "preempted"]
    wait_s: float


Event = Annotated[Began | Alive | Saved | Ended, Field(discriminator="kind")]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def process_started_s() -> float:
    """When this process was made, seconds since 1970 UTC: before the first import of its program; now if unknown."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return time.time()
    return booted_s + ticks / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Journal:
    """Appends a process's events to a file; nothing is written where `path` is None, or before it began.

    A line is not synced to the disk: a killed process loses none, a machine that dies the last few.

    Args:
        path: of JSON lines; made with its folder.
        clock: seconds since 1970 UTC.
        started_s: when the process was made, by that clock.

    Attributes:
        place: where the process is now, for people.
        moves: how often that has changed; ranks that are as far have as many.
        has_begun: whether the start is over.
    """

    path: Path | None
    clock: Callable[[], float] = time.time
    started_s: float = field(default_factory=process_started_s)
    phases: dict[str, float] = field(default_factory=dict, init=False)
    place: str = field(default="starting", init=False)
    moves: int = field(default=0, init=False)
    has_begun: bool = field(default=False, init=False)
    _wait_s: float = field(default=0.0, init=False)
    _told_s: float = field(default=0.0, init=False)

    def phase(self, name: str) -> None:
        """A part of the start is over: it took what has gone by since the one before, or since the process was made."""
        if not self.has_begun:
            self.phases[name] = self.clock() - self.started_s - sum(self.phases.values())
            self._move(f"starting, after: {name}")

    def arrived(self, step: int, waited_s: float, *, world_size: int) -> None:
        """A batch is there that the model waited for; the first one ends the start, and training has `Began`."""
        if self.has_begun:
            self._move(f"step {step + 1:,}, learning")
            self._wait_s += waited_s
            return
        self.phase("first batch")
        self._move(f"step {step + 1:,}, learning")
        self.has_begun, started = True, self.started_s
        self._append(
            Began(time_s=self.clock(), step=step, started_s=started, world_size=world_size, phases=self.phases)
        )

    def alive(self, step: int) -> None:
        """See `Alive`; at most one in `ALIVE_EVERY_S` is written."""
        self._move(f"after step {step:,}")
        if self.clock() - self._told_s >= ALIVE_EVERY_S:
            self._append(Alive(time_s=self.clock(), step=step, wait_s=self._wait_s))

    def saved(self, step: int, *, stall_s: float) -> None:
        """See `Saved`."""
        self._move(f"after step {step:,}, saved")
        self._append(Saved(time_s=self.clock(), step=step, stall_s=stall_s))

    def ended(self, step: int, *, how: Literal["finished", "preempted"]) -> None:
        """See `Ended`."""
        self._append(Ended(time_s=self.clock(), step=step, how=how, wait_s=self._wait_s))

    def _move(self, place: str) -> None:
        self.place, self.moves = place, self.moves + 1

    def _append(self, event: _Event) -> None:
        self._told_s = event.time_s
        if self.path is None or not self.has_begun:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(orjson.dumps(event.model_dump()) + b"\n")


def read_journal(path: Path) -> list[Event]:
    """Events in their order; a line that a death tore is left out."""
    if not path.is_file():
        return []
    found: list[Event] = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(_EVENT.validate_json(line))
        except ValidationError:
            continue
    return found
