"""The verdict, and everything one needs to believe it or to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from serving.gate.host import Host, busy_signs
from serving.gate.measure import Timings
from serving.gate.policy import Budget
from serving.gate.rule import Decision, Outcome, Plan, decide

FORMAT = 1
NUM_BLOCKS = 5
_HOPELESS = 2.0  # a neighbour on the same core does not halve the speed of every single request
_EXIT_CODES: dict[Outcome, int] = {"PASS": 0, "FAIL": 1, "INVALID": 2}


class Part(BaseModel):
    """A part of the report: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Latencies(Part):
    """Latencies of one loop, in milliseconds, by nearest rank: every figure is one that occurred."""

    num_requests: int
    num_over: int = Field(description="Over the limit, failed ones included.")
    min_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class Record(Part):
    """What else a verdict carries."""

    bundle_digest: str = Field(description="sha256 of the bundle's manifest, which pins all its files.")
    requests_digest: str = Field(description="sha256 of the file of requests.")
    load_ms: float = Field(description="From the folder to a verified, open bundle.")
    peak_memory_bytes: int


class Verdict(Part):
    """PASS, FAIL or INVALID, with reasons and record."""

    format: Literal[1] = FORMAT
    verdict: Outcome
    reasons: tuple[str, ...]
    further_clean_requests: int = Field(
        description="Requests, all within the limit, that would have made it a PASS; 0 for PASS."
    )
    budget: Budget
    seed: int
    look_confidence: float = Field(description="Confidence of each look, so that all looks keep the budget's.")
    looks: tuple[int, ...] = Field(description="Planned numbers of requests at which the rule was asked.")
    num_requests: int = Field(description="Requests of the open loop that the verdict rests on.")
    num_over: int
    num_failed: int
    num_unanswered: int = Field(description="Over the limit before they were begun; their latencies are lower bounds.")
    first_failure: str | None
    num_warm_up: int
    num_distinct: int = Field(description="Distinct logged requests that were drawn from.")
    median_candidates: int
    max_candidates: int
    open_loop: Latencies | None = Field(description="From the scheduled arrival; None if nothing arrived.")
    blocks: tuple[Latencies | None, ...] = Field(description="The open loop in five equal periods; None if empty.")
    closed_loop: Latencies | None
    null_loop: Latencies | None = Field(description="The harness alone, in the open loop.")
    host: Host
    record: Record

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 2 INVALID."""
        return _EXIT_CODES[self.verdict]


@dataclass(frozen=True, slots=True)
class Run:
    """All that one run measured.

    Attributes:
        budget, seed: what was asked.
        plan: when the rule was asked.
        warm_up, null, closed, opened: the loops, in the order in which they ran.
        host: where.
        num_candidates: of each of the distinct requests.
        record: the fields of `Verdict` that are taken as they are.
    """

    budget: Budget
    seed: int
    plan: Plan
    warm_up: Timings
    null: Timings
    closed: Timings
    opened: Timings
    host: Host
    num_candidates: Sequence[int]
    record: Record


def verdict_of(run: Run) -> Verdict:
    """Judge a run."""
    budget, limit_ns = run.budget, round(run.budget.limit_ms * 1e6)
    num_requests, num_over = len(run.opened.latency_ns), int(run.opened.over(limit_ns).sum())
    confidence = run.plan.confidence
    decision = decide(num_requests, num_over, percentile=budget.percentile, confidence=confidence)
    closed, null = latencies(run.closed, limit_ns), latencies(run.null, limit_ns)
    outcome, notes = judge(decision, run.host, closed=closed, null=null, budget=budget)
    return Verdict(
        verdict=outcome,
        reasons=(explain(decision, num_requests, num_over, budget=budget, confidence=confidence), *notes),
        further_clean_requests=decision.further_clean,
        budget=budget,
        seed=run.seed,
        look_confidence=confidence,
        looks=run.plan.counts,
        num_requests=num_requests,
        num_over=num_over,
        num_failed=int(run.opened.failed.sum()),
        num_unanswered=run.opened.num_unanswered,
        first_failure=run.opened.first_failure,
        num_warm_up=len(run.warm_up.latency_ns),
        num_distinct=len(run.num_candidates),
        median_candidates=int(np.median(run.num_candidates)),
        max_candidates=max(run.num_candidates),
        open_loop=latencies(run.opened, limit_ns),
        blocks=blocks(run.opened, limit_ns),
        closed_loop=closed,
        null_loop=null,
        host=run.host,
        record=run.record,
    )


def latencies(timings: Timings, limit_ns: int) -> Latencies | None:
    """Summary of a loop; None if it has no request."""
    if not len(timings.latency_ns):
        return None
    return _summary(timings.latency_ns, timings.over(limit_ns))


def blocks(timings: Timings, limit_ns: int) -> tuple[Latencies | None, ...]:
    """Summaries of five equal periods: misses that clump in one of them were not independent."""
    if not len(timings.latency_ns):
        return (None,) * NUM_BLOCKS
    end_ns = int(timings.started_ns[-1]) + 1
    block = timings.started_ns * NUM_BLOCKS // end_ns
    over = timings.over(limit_ns)
    return tuple(
        _summary(timings.latency_ns[block == place], over[block == place]) if (block == place).any() else None
        for place in range(NUM_BLOCKS)
    )


def judge(
    decision: Decision, host: Host, *, closed: Latencies | None, null: Latencies | None, budget: Budget
) -> tuple[Outcome, tuple[str, ...]]:
    """The rule's decision, unless the host was at fault.

    Others on the host only ever add latency, so a PASS stands whatever they did. A FAIL stands only on a quiet host, or
    where even the fastest request took more than twice the limit.
    """
    signs = busy_signs(host)
    if null is not None and null.p99_ms > budget.limit_ms:
        signs = (*signs, f"the harness alone took {null.p99_ms:.3f} ms at p99, more than the limit")
    busy = tuple(f"the host was busy: {sign}" for sign in signs)
    if decision.outcome == "FAIL" and closed is not None and closed.min_ms > _HOPELESS * budget.limit_ms:
        return "FAIL", (f"even the fastest request took {closed.min_ms:.3f} ms of {budget.limit_ms:g} ms", *busy)
    if decision.outcome == "FAIL" and busy:
        return "INVALID", busy
    return decision.outcome, busy


def explain(decision: Decision, num_requests: int, num_over: int, *, budget: Budget, confidence: float) -> str:
    """What the rule saw, in words."""
    seen = (
        f"{num_over} of {num_requests} requests were over {budget.limit_ms:g} ms from their scheduled arrival, at "
        f"{budget.rate_per_s:g} a second; p{100 * budget.percentile:g} at confidence {confidence:.4g} "
    )
    if decision.outcome == "PASS":
        return seen + "holds"
    if decision.outcome == "FAIL":
        return seen + "is missed"
    return seen + f"is open: {decision.further_clean} further requests, all within the limit, would settle it"


def _summary(latency_ns: NDArray[np.int64], over: NDArray[np.bool_]) -> Latencies:
    ranks: Sequence[float] = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
    values = np.quantile(latency_ns, ranks, method="inverted_cdf") / 1e6
    names = ("min_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms")
    return Latencies(
        num_requests=len(latency_ns), num_over=int(over.sum()), **dict(zip(names, values.tolist(), strict=True))
    )
