"""Where the time of a job that was killed went, beside what Young and Daly predict from one that was left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.killing import Killed
from foundation.goodput.journal import Began, Event
from foundation.goodput.report import Goodput, goodput_of
from foundation.parallel.reliability import lost_share


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of a job; `why` says what the difference is made of."""

    name: str
    predicted_s: float
    measured_s: float
    why: str


@dataclass(frozen=True, slots=True)
class LostTime:
    """All parts; each column adds up to the job's time.

    Attributes:
        mtbf_s: seconds of work between two failures.
        save_s, interval_s, start_s: δ, τ and R of the prediction, as the job that was left alone has them.
    """

    mtbf_s: float
    save_s: float
    interval_s: float
    start_s: float
    predicted_ettr: float
    measured_ettr: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Down:
    """Seconds between the last line of an attempt and the next attempt's process, by what they were.

    Attributes:
        unseen_s: steps up to the kill, of which the journal has no line.
        killed_start_s: starts that were killed before their first step.
        launcher_s: from a kill to the process that came to a step.
    """

    unseen_s: float
    killed_start_s: float
    launcher_s: float


def lost_time(left_alone: Sequence[Event], events: Sequence[Event], kills: Sequence[Killed]) -> LostTime:
    """The account of a job's journal and kills, and its prediction out of the journal of one that was left alone.

    ETTR = 1 / (1 + δ/τ + τ/2M + R/M), M = work / failures; see `foundation.parallel.reliability`.
    """
    alone, account = _account(left_alone), _account(events)
    work = alone.productive_s + alone.data_wait_s
    num_saves = sum(event.kind == "saved" for event in left_alone)
    save_s, interval_s = alone.checkpoint_stall_s / num_saves, work / num_saves
    num_failures = len(kills)
    mtbf_s = work / num_failures
    lost = lost_share(interval_s, save_h=save_s, mtbf_h=mtbf_s, outage_h=alone.startup_s)
    down = _down(events, kills)
    num_starts, start_s = account.num_attempts, alone.startup_s
    in_saves, damaged = sum(kill.in_save for kill in kills), sum(kill.damaged is not None for kill in kills)
    not_steps = num_failures - (num_starts - 1)
    why_again = (
        f"{in_saves} kills in a save lost τ, not τ/2; {damaged} damaged checkpoints cost τ more; {not_steps} kills hit "
        f"a start; {down.unseen_s:.1f} s up to kills are in no journal"
    )
    why_starts = (
        f"{num_starts} came to a step, the first after no failure; R was {start_s:.1f} s, then "
        f"{account.startup_s / num_starts:.1f} s on average"
    )
    parts = (
        Part("steps kept", work, account.productive_s + account.data_wait_s, "other load; first steps are slow"),
        Part("saving", work * save_s / interval_s, account.checkpoint_stall_s, "other load"),
        Part("steps done again", work * interval_s / (2 * mtbf_s), account.redone_s + down.unseen_s, why_again),
        Part("starts", num_failures * start_s, account.startup_s, why_starts),
        Part("starts that were killed", 0.0, down.killed_start_s, "no failures in a start in the formula"),
        Part("until the next process", 0.0, down.launcher_s, "torchrun ends the other rank, and starts"),
    )
    return LostTime(mtbf_s, save_s, interval_s, start_s, 1 / (1 + lost), account.ettr, parts)


def _account(events: Sequence[Event]) -> Goodput:
    account = goodput_of(events)
    assert account is not None, "the training came to its end"
    return account


def _down(events: Sequence[Event], kills: Sequence[Killed]) -> _Down:
    starts = [place for place, event in enumerate(events) if isinstance(event, Began)]
    unseen = killed_start = launcher = 0.0
    for last, place in ((place - 1, place) for _, place in pairwise(starts)):
        before, began = events[last], events[place]
        assert isinstance(began, Began), "places of `starts` are of events that began"
        times = [kill.time_s for kill in kills if kill.num_began == starts.index(place)]
        assert times, "every attempt but the last was killed"
        first, last_s = max(min(times), before.time_s), max(*times, before.time_s)
        unseen += first - before.time_s
        killed_start += last_s - first
        launcher += began.started_s - last_s
    return _Down(unseen, killed_start, launcher)
