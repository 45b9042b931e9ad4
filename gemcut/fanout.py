"""Runs independent jobs in local processes: one failure never takes the others down; all are told at the end."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any, Generic, TypeVar

from serving.errors import Problem, UserError

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What became of one job: a result or an error."""

    name: str
    result: Result | None
    error: BaseException | None


def run_jobs(
    work: Callable[[Job], Result], jobs: Sequence[tuple[str, Job]], *, num_processes: int
) -> Iterator[Outcome[Result]]:
    """Yield each named job's outcome as it ends.

    Each process is a pool of its own, since a pool whose process dies fails every job that it holds.

    Args:
        work: a module's function; job and result must be picklable.
        jobs: name and argument of each.
        num_processes: at once, each with one OpenMP thread; spawned, since torch does not survive a fork.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    waiting = deque(jobs)
    running: dict[Future[Result], tuple[str, ProcessPoolExecutor]] = {}
    with ExitStack() as stack:
        idle = [_process(stack) for _ in range(min(num_processes, len(jobs)))]
        while waiting or running:
            while waiting and idle:
                (name, job), pool = waiting.popleft(), idle.pop()
                running[pool.submit(work, job)] = (name, pool)
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                name, pool = running.pop(done)
                died = isinstance(done.exception(), BrokenProcessPool)
                idle.append(_process(stack) if died else pool)
                yield _outcome(name, done)


def raise_failures(outcomes: Sequence[Outcome[Any]]) -> None:
    """After all have ended: raise every user's mistake at once; or the first other error, which notes the rest."""
    failed = [(outcome.name, outcome.error) for outcome in outcomes if outcome.error is not None]
    for name, error in failed:
        if not isinstance(error, UserError):
            for other, also in failed:
                if also is not error:
                    error.add_note(f"{other} failed too: {also}")
            error.add_note(f"This is how {name} failed.")
            raise error
    problems = [problem for _, error in failed if isinstance(error, UserError) for problem in error.problems]
    if problems:
        raise UserError(list(dict.fromkeys(problems)))


def _process(stack: ExitStack) -> ProcessPoolExecutor:
    return stack.enter_context(
        ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), initializer=_end_with_parent)
    )


def _end_with_parent() -> None:
    """Whatever ends the command ends its jobs: one that ran on would write where the next command's jobs write."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    assert parent is not None, "this runs in a process that was spawned"
    parent.join()
    os._exit(1)


def _outcome(name: str, done: Future[Result]) -> Outcome[Result]:
    error = done.exception()
    if isinstance(error, BrokenProcessPool):
        remedy = "Look at the memory of this machine and run the command again: finished jobs are kept."
        error = UserError(Problem(name, "a process that ends its job", "a process that died", remedy))
    return Outcome(name, None if error else done.result(), error)
