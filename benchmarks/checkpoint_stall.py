"""What saving costs a training: blocks of steps that begin with a save, beside blocks that do not.

`python -m benchmarks.checkpoint_stall PROJECT` trains on the same rows three times a round, in turn: with saves in the
background, with saves that training waits for, and with none. Steps come in pairs of blocks, and where there are saves
each pair begins with one. What a save cost is

    (seconds of its block - seconds of the next block) - (the same two blocks' difference in the pass without saves)

so steps that were slower while a file was written count, and not just the time that training stood still; what the
machine does to both blocks does not, nor do rows that take longer.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.command import ProjectArgument, SetOption, command_line, run
from benchmarks.report import show
from eval.artifacts import write_json
from foundation.data.store import Store
from foundation.efficiency.timing import Measured
from foundation.goodput.journal import Saved, read_journal
from foundation.training.foundation_model import JOURNAL_FILE, train_foundation
from foundation.training.job import FoundationJob
from gemcut.console import Screen
from gemcut.project import load_project
from gemcut.workspace import Workspace
from serving.errors import Problem, UserError

NONE, ASYNC, SYNC = "none", "async", "sync"
LIMIT, INTERVAL_S = 0.02, 60.0
NEVER = 2**31 - 1
ERROR = 0.05
LEAST_SAVES = 6
"""Of fewer values no interval for the median errs in at most `ERROR` of all cases."""

HOLDS, FAILS, UNCLEAR = "holds", "fails", "unclear"
EXIT_CODES = {HOLDS: 0, FAILS: 1, UNCLEAR: 2}


@dataclass(frozen=True, slots=True)
class Pass:
    """A training over the rows.

    Attributes:
        times_s: when each step was done, [steps + 1], the first one when the pass began.
        cpu_s: of the whole process by then, [steps + 1].
        stalls_s: that each save within it stopped training; without the one at its end.
    """

    times_s: tuple[float, ...]
    cpu_s: tuple[float, ...]
    stalls_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way to save.

    Attributes:
        num_saves: in all rounds.
        stall_s: that a save stopped training; median and range.
        lost_s: that a save cost, see the module; median and its interval, which errs in at most `ERROR` of all cases.
        cpu_s: the same of the process's CPU seconds: the work of a save, whatever else runs on the machine.
        share: of training time that is lost at one save every `INTERVAL_S`: lost_s / INTERVAL_S.
    """

    num_saves: int
    stall_s: Measured
    lost_s: Measured
    cpu_s: Measured
    share: Measured

    @property
    def verdict(self) -> str:
        """Whether at most `LIMIT` is lost; unclear where the limit is within the interval."""
        return HOLDS if self.share.high <= LIMIT else FAILS if self.share.low > LIMIT else UNCLEAR


def pair_differences(times_s: Sequence[float], block: int) -> list[float]:
    """Seconds of the first block of each pair less those of the second; pairs begin at every `2 * block` steps.

    The step after which a save is made belongs to its block. The first pair has none.

    Example:
        >>> pair_differences([0, 1, 2, 3, 9, 10, 11, 12, 13, 14], 2)  # the save is made after the fourth step
        [5]
    """
    starts = range(2 * block - 1, len(times_s) - 2 * block, 2 * block)
    return [2 * times_s[start + block] - times_s[start] - times_s[start + 2 * block] for start in starts]


def median_interval(values: Sequence[float]) -> Measured:
    """The median, and the narrowest pair of values that has it in between in 1 - `ERROR` of all cases.

    Example:
        >>> median_interval([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
        Measured(median=3.5, low=1.0, high=6.0)

    Source: distribution-free, by the binomial distribution of how many values are below the median.
    """
    ordered, number = sorted(values), len(values)
    outside, rank = 0.0, 0
    while 2 * (outside + math.comb(number, rank) / 2**number) <= ERROR:
        outside += math.comb(number, rank) / 2**number
        rank += 1
    assert rank > 0, f"{number} values are too few"
    return Measured(median(ordered), ordered[rank - 1], ordered[number - rank])


def cost_of(saving: Sequence[Pass], without: Sequence[Pass], block: int) -> Cost:
    """What saving cost; each pass beside the one of its round that did not save."""
    rounds = list(zip(saving, without, strict=True))
    lost = [cost for one, other in rounds for cost in _beside(one.times_s, other.times_s, block)]
    cpu = [cost for one, other in rounds for cost in _beside(one.cpu_s, other.cpu_s, block)]
    if len(lost) < LEAST_SAVES:
        where, got = "command line: --requests, --block, --rounds", f"{len(lost)} of them"
        remedy = "Train on more requests, save more often, or take more rounds."
        raise UserError(Problem(where, f"at least {LEAST_SAVES} saves in all", got, remedy))
    seconds = median_interval(lost)
    share = Measured(*(value / INTERVAL_S for value in (seconds.median, seconds.low, seconds.high)))
    stalls = [stall for one in saving for stall in one.stalls_s]
    return Cost(len(lost), Measured.of(stalls), seconds, median_interval(cpu), share)


def _beside(saving: Sequence[float], without: Sequence[float], block: int) -> list[float]:
    pairs = zip(pair_differences(saving, block), pair_differences(without, block), strict=True)
    return [one - other for one, other in pairs]


def trained(job: FoundationJob) -> Pass:
    """Train a job from its first row, in its folder, which is emptied before."""
    shutil.rmtree(job.folder, ignore_errors=True)
    times, cpu = [time.perf_counter()], [time.process_time()]

    def tell(_share: float, _words: str) -> None:
        times.append(time.perf_counter())
        cpu.append(time.process_time())

    train_foundation(job, progress=tell)
    events = read_journal(job.folder / JOURNAL_FILE)
    stalls = [event.stall_s for event in events if isinstance(event, Saved)]
    return Pass(tuple(times), tuple(cpu), tuple(stalls[:-1]))


def compare(job: FoundationJob, *, block: int, rounds: int, screen: Screen) -> dict[str, list[Pass]]:
    """Passes by way of saving and round; every round has all three, each time another first."""
    jobs = {
        NONE: _with(job, checkpoint_every=NEVER, checkpoint_async=True),
        ASYNC: _with(job, checkpoint_every=2 * block, checkpoint_async=True),
        SYNC: _with(job, checkpoint_every=2 * block, checkpoint_async=False),
    }
    found: dict[str, list[Pass]] = {name: [] for name in jobs}
    names = list(jobs)
    for start in range(rounds):
        for place in range(len(names)):
            name = names[(start + place) % len(names)]
            done = trained(jobs[name])
            found[name].append(done)
            took = f"{done.times_s[-1] - done.times_s[0]:7.1f} s"
            screen.say(f"  round {start + 1}: {took}, {len(done.times_s) - 1} steps, saves {name}")
    return found


def _with(job: FoundationJob, **settings: Any) -> FoundationJob:
    training = job.config.training.model_copy(update=settings | {"failures_every": None})
    return replace(job, config=job.config.model_copy(update={"training": training}))


def opened_job(path: Path, *, overrides: Sequence[str], requests: int, folder: Path) -> FoundationJob:
    """The project's training over the first requests of its store."""
    loaded = load_project(path, overrides)
    store = Store.open(Workspace(loaded).store, loaded.project)
    positions = store.select()[:requests]
    until_us = int(store.times[positions[-1]]) + 1
    return FoundationJob(loaded.project, loaded.project.foundation, store.folder, folder, until_us)


def _show(costs: dict[str, Cost], title: str) -> None:
    columns = ["saving", "saves", "stopped a save, s", "CPU a save, s", "lost a save, s"]
    columns.append(f"lost at one every {INTERVAL_S:.0f} s")
    lines = [
        [
            name,
            str(cost.num_saves),
            *(f"{one.median:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in (cost.stall_s, cost.cpu_s, cost.lost_s)),
            f"{cost.share.median:.2%} [{cost.share.low:.2%}, {cost.share.high:.2%}]",
        ]
        for name, cost in costs.items()
    ]
    show(title, columns, lines)


app = command_line()


@app.command(help=__doc__)
def checkpoint_stall(
    project: ProjectArgument,
    *,
    requests: Annotated[int, typer.Option(min=1, help="The first so many requests of the store.")] = 16_000,
    block: Annotated[int, typer.Option(min=1, help="Steps of a block; a save must be on the disk after them.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Of three passes each.")] = 3,
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Write all figures here, as JSON.")] = None,
) -> None:
    """See the module."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="gemcut-stall-") as folder:
        job = opened_job(project, overrides=overrides or [], requests=requests, folder=Path(folder) / "run")
        passes = compare(job, block=block, rounds=rounds, screen=screen)
    costs = {name: cost_of(passes[name], passes[NONE], block) for name in (ASYNC, SYNC)}
    cores, threads = len(os.sched_getaffinity(0)), job.config.training.threads
    _show(costs, f"{cores} cores, {threads} threads, a save every {2 * block} steps; stops: range, losses: interval")
    verdict = costs[ASYNC].verdict
    screen.say(f"async saves lose at most {LIMIT:.0%} of the time at one every {INTERVAL_S:.0f} s: {verdict}")
    if out is not None:
        found = {"cores": cores, "threads": threads, "block": block, "verdict": verdict, "costs": costs}
        write_json(out, found | {"passes": passes})
    screen.result({}, following=_following(verdict, project))
    sys.exit(EXIT_CODES[verdict])


def _following(verdict: str, project: Path) -> str:
    if verdict == UNCLEAR:
        return f"python -m benchmarks.checkpoint_stall {project} --rounds 9, with nothing else on the machine"
    return f"gemcut train -p {project} --set foundation.training.checkpoint_every={INTERVAL_S:.0f}s"


if __name__ == "__main__":
    run(app)
