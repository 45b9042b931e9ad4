"""The harness: the same loops for the ranker and for the null system, on any clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.gate.clock import Clock
from serving.gate.policy import Budget
from serving.gate.rule import Plan, decide, plan_looks

Int64Array = NDArray[np.int64]
Request = Any
System = Callable[[Request], object]


@dataclass(frozen=True, slots=True)
class Timings:
    """What was measured.

    Attributes:
        started_ns: [n] from the start of the loop: scheduled arrivals in the open loop, true starts in the closed one.
        latency_ns: [n] from `started_ns` to the answer; for a request that was never answered, to the end of the run.
        failed: [n] True where the system raised.
        num_unanswered: the last so many requests had not been answered when they were already over the limit.
        first_failure: message of the first error.
    """

    started_ns: Int64Array
    latency_ns: Int64Array
    failed: NDArray[np.bool_]
    num_unanswered: int = 0
    first_failure: str | None = None

    def over(self, limit_ns: int) -> NDArray[np.bool_]:
        """[n] True where a request was answered too late, wrongly or not at all."""
        return self.failed | (self.latency_ns > limit_ns)


def null_system(request: Request) -> None:
    """A system that takes no time; what is measured of it is the harness."""


def open_loop(
    system: System,
    requests: Sequence[Request],
    arrivals_ns: Int64Array,
    *,
    clock: Clock,
    limit_ns: int,
    looks: Sequence[int],
    decided: Callable[[int, int], bool],
) -> Timings:
    """One worker answers requests in the order of their schedule; time runs from the schedule, so queueing counts.

    Args:
        system: answers one request.
        requests: [n].
        arrivals_ns: [n] scheduled arrivals from the start, ascending.
        clock: time.
        limit_ns: the latency limit.
        looks: ascending numbers of requests after which `decided` is asked; the run ends at the last at the latest.
        decided: (number of requests, number over the limit) to whether the run may end.

    Returns:
        Timings of as many requests as the look that ended the run. A look is also taken early, as soon as all the
        requests it waits for are over the limit: a system that cannot keep up is not waited for.
    """
    latency_ns = np.zeros(len(requests), dtype=np.int64)
    failed = np.zeros(len(requests), dtype=np.bool_)
    first_failure: str | None = None
    pending = list(looks)
    over = done = 0
    start_ns = clock.now_ns()
    for request, arrival_ns in zip(requests, arrivals_ns.tolist(), strict=True):
        if not pending:
            break
        clock.sleep_until_ns(start_ns + arrival_ns)
        error = _attempt(system, request)
        now_ns = clock.now_ns() - start_ns
        latency_ns[done] = now_ns - arrival_ns
        failed[done] = error is not None
        first_failure = first_failure or error
        over += bool(failed[done] or latency_ns[done] > limit_ns)
        done += 1
        while pending and (done >= pending[0] or now_ns - arrivals_ns[pending[0] - 1] > limit_ns):
            count = pending.pop(0)
            unanswered = count - done
            if decided(count, over + unanswered) or not pending:
                latency_ns[done:count] = now_ns - arrivals_ns[done:count]
                started_ns = arrivals_ns[:count]
                return Timings(started_ns, latency_ns[:count], failed[:count], unanswered, first_failure)
    return Timings(arrivals_ns[:done], latency_ns[:done], failed[:done], 0, first_failure)


def run_open_loop(
    system: System, requests: Sequence[Request], arrivals_s: NDArray[np.float64], *, budget: Budget, clock: Clock
) -> tuple[Timings, Plan]:
    """The open loop of one budget: it ends as soon as the rule decides, and at `max_duration_s` at the latest."""
    plan = plan_looks(
        arrivals_s,
        percentile=budget.percentile,
        confidence=budget.confidence,
        first_s=budget.min_duration_s,
        last_s=budget.max_duration_s,
    )

    def decided(num_requests: int, over: int) -> bool:
        decision = decide(num_requests, over, percentile=budget.percentile, confidence=plan.confidence)
        return decision.outcome != "INVALID"

    timings = open_loop(
        system,
        requests,
        np.round(arrivals_s * 1e9).astype(np.int64),
        clock=clock,
        limit_ns=round(budget.limit_ms * 1e6),
        looks=plan.counts,
        decided=decided,
    )
    return timings, plan


def closed_loop(system: System, requests: Sequence[Request], *, clock: Clock, duration_ns: int) -> Timings:
    """Requests back to back, each sent when the one before is answered; at least one, then until the time is up.

    It flatters: no queue forms and caches stay warm. It is the warm-up, and stands beside the open loop for comparison.
    """
    started_ns: list[int] = []
    latency_ns: list[int] = []
    failed: list[bool] = []
    first_failure: str | None = None
    start_ns = clock.now_ns()
    for request in cycle(requests):
        before_ns = clock.now_ns()
        error = _attempt(system, request)
        after_ns = clock.now_ns()
        started_ns.append(before_ns - start_ns)
        latency_ns.append(after_ns - before_ns)
        failed.append(error is not None)
        first_failure = first_failure or error
        if after_ns - start_ns >= duration_ns:
            break
    return Timings(np.array(started_ns), np.array(latency_ns), np.array(failed), 0, first_failure)


def _attempt(system: System, request: Request) -> str | None:
    try:
        system(request)
    except Exception as error:  # noqa: BLE001 - whatever a system raises, the request was not answered
        return f"{type(error).__name__}: {error}"
    return None
