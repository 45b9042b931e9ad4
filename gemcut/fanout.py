"""Runs independent jobs in local processes: one failure never takes the others down; all are told at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Generic, TypeVar

from serving.errors import Problem, UserError

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What became of one job: a result or an error."""

    name: str
    result: Result | None
    error: Exception | None


def run_jobs(
    work: Callable[[Job], Result], jobs: Sequence[tuple[str, Job]], *, num_processes: int
) -> Iterator[Outcome[Result]]:
    """Yield each named job's outcome as it ends.

    Args:
        work: a module's function; job and result must be picklable.
        jobs: name and argument of each.
        num_processes: at once, each with one OpenMP thread; spawned, since torch does not survive a fork.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(max_workers=num_processes, mp_context=get_context("spawn")) as pool:
        names = {pool.submit(work, job): name for name, job in jobs}
        for done in as_completed(names):
            yield _outcome(names[done], done)


def raise_failures(outcomes: Sequence[Outcome[object]]) -> None:
    """After all have ended: raise every user's mistake at once, or the first other error."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    problems = [
        problem for outcome in failed if isinstance(outcome.error, UserError) for problem in outcome.error.problems
    ]
    for outcome in failed:
        if outcome.error is not None and not isinstance(outcome.error, UserError):
            raise outcome.error
    if problems:
        raise UserError(list(dict.fromkeys(problems)))


def _outcome(name: str, done: Future[Result]) -> Outcome[Result]:
    try:
        return Outcome(name, done.result(), None)
    except BrokenProcessPool:
        remedy = "Look at the memory of this machine and run the command again: finished jobs are kept."
        return Outcome(
            name, None, UserError(Problem(name, "a process that ends its job", "a process that died", remedy))
        )
    except Exception as error:  # noqa: BLE001 (reported with the others when all have ended)
        return Outcome(name, None, error)
