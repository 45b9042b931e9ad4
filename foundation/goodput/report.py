"""Goodput: the share of a job's time that went into steps that were kept, and where the rest went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from foundation.goodput.journal import Alive, Began, Ended, Event, Saved


@dataclass(frozen=True, slots=True)
class Goodput:
    """Seconds of a job from its first process's start to its last sign of life; the parts add up to `wall_s`.

    Between an end and the start of a process that goes on with more, as on the next day, there is no job.

    Attributes:
        num_attempts: processes that took up the job (of several ranks, the first one's).
        startup_s: from a process's start to its first step; `startup_phases_s` are those of the last attempt.
        productive_s: steps that were kept.
        data_wait_s: waiting for the reader.
        checkpoint_stall_s: steps stood still for a save.
        redone_s: steps of an attempt that the next one did again, since no checkpoint had them.
        down_s: between an attempt's last sign of life and the next one's start.
        steps_redone: how many.
        goodput: productive_s / wall_s, in [0, 1].
        ettr: the same with data_wait_s counted as productive.

    Source: badput classes of ml-goodput-measurement; ETTR of arXiv 2410.21680, without time in a queue, which a process
    can not see.
    """

    num_attempts: int
    wall_s: float
    startup_s: float
    startup_phases_s: dict[str, float]
    productive_s: float
    data_wait_s: float
    checkpoint_stall_s: float
    redone_s: float
    down_s: float
    steps_redone: int
    goodput: float
    ettr: float


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One process.

    Attributes:
        began: what it said when it began.
        kept: its signs of life, `began` among them, up to the step where the next attempt took over.
        last: its last sign of life, kept or not.
    """

    began: Began
    kept: tuple[Event, ...]
    last: Event

    @property
    def has_finished(self) -> bool:
        return isinstance(self.last, Ended) and self.last.how == "finished"

    @property
    def wait_s(self) -> float:
        waits = [event.wait_s for event in self.kept if isinstance(event, Alive | Ended)]
        return max(waits, default=0.0)

    @property
    def stall_s(self) -> float:
        return sum(event.stall_s for event in self.kept if isinstance(event, Saved))

    @property
    def redone_s(self) -> float:
        return self.last.time_s - self.kept[-1].time_s

    @property
    def steps_redone(self) -> int:
        return self.last.step - self.kept[-1].step


def goodput_of(events: Sequence[Event]) -> Goodput | None:
    """The account of a journal; None of one in which nothing began."""
    attempts = _attempts(events)
    if not attempts:
        return None
    gaps = [(before, after.began.started_s - before.last.time_s) for before, after in pairwise(attempts)]
    down = sum(gap for before, gap in gaps if not before.has_finished)
    between_jobs = sum(gap for _, gap in gaps) - down
    wall = attempts[-1].last.time_s - attempts[0].began.started_s - between_jobs
    startup = sum(attempt.began.time_s - attempt.began.started_s for attempt in attempts)
    wait = sum(attempt.wait_s for attempt in attempts)
    stall = sum(attempt.stall_s for attempt in attempts)
    redone = sum(attempt.redone_s for attempt in attempts)
    productive = wall - startup - wait - stall - redone - down
    return Goodput(
        num_attempts=len(attempts),
        wall_s=wall,
        startup_s=startup,
        startup_phases_s=attempts[-1].began.phases,
        productive_s=productive,
        data_wait_s=wait,
        checkpoint_stall_s=stall,
        redone_s=redone,
        down_s=down,
        steps_redone=sum(attempt.steps_redone for attempt in attempts),
        goodput=productive / wall if wall > 0 else 0.0,
        ettr=(productive + wait) / wall if wall > 0 else 0.0,
    )


def _attempts(events: Sequence[Event]) -> list[_Attempt]:
    """Each process's events; what the next one did again is not among those that were kept."""
    starts = [place for place, event in enumerate(events) if isinstance(event, Began)]
    attempts: list[_Attempt] = []
    for first, after in pairwise([*starts, len(events)]):
        began, own = events[first], events[first:after]
        assert isinstance(began, Began), "places of `starts` are of events that began"
        taken_over_at = events[after].step if after < len(events) else own[-1].step
        kept = tuple(event for event in own if event.step <= taken_over_at)
        attempts.append(_Attempt(began, kept or (began,), own[-1]))
    return attempts
