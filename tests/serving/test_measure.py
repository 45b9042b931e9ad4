"""The harness on a clock of its own: queues, failures, early ends; nothing here takes real time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gate.clock import ManualClock, MonotonicClock
from serving.gate.load import poisson_arrivals
from serving.gate.measure import closed_loop, null_system, open_loop, run_open_loop
from serving.gate.policy import Budget
from serving.gate.rule import decide

MS = 1_000_000


class Fixed:
    """A system that takes the same time for every request, on a manual clock."""

    def __init__(self, clock, service_ms, fails=lambda number: False):
        self.clock, self.service_ms, self.fails, self.calls = clock, service_ms, fails, 0

    def __call__(self, request):
        self.calls += 1
        self.clock.advance_ns(round(self.service_ms * MS))
        if self.fails(self.calls):
            raise ValueError(f"request {self.calls} broke")


def run(system, clock, **budget):
    budget = Budget(**({"limit_ms": 50.0, "rate_per_s": 100.0} | budget))
    arrivals = poisson_arrivals(budget.rate_per_s, budget.max_duration_s, np.random.default_rng(7))
    timings, plan = run_open_loop(system, list(range(len(arrivals))), arrivals, budget=budget, clock=clock)
    num_over = int(timings.over(round(budget.limit_ms * MS)).sum())
    count = len(timings.latency_ns)
    return timings, decide(count, num_over, percentile=budget.percentile, confidence=plan.confidence), plan


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=40))
def test_latencies_are_those_of_a_queue_with_one_server(gaps_and_services):
    """Lindley: the wait of a request is what is left of the work before it."""
    gaps, services = zip(*gaps_and_services, strict=True)
    arrivals = np.cumsum(gaps)
    expected, free_at = [], 0
    for arrival, service in zip(arrivals.tolist(), services, strict=True):
        free_at = max(free_at, arrival) + service
        expected.append(free_at - arrival)
    clock = ManualClock()
    found = open_loop(
        clock.advance_ns,
        services,
        arrivals,
        clock=clock,
        limit_ns=10**9,
        looks=(len(services),),
        decided=lambda *_: True,
    )
    assert found.latency_ns.tolist() == expected


def test_a_system_that_is_quick_but_cannot_keep_up_fails():
    clock = ManualClock()
    system = Fixed(clock, 20.0)  # well within 50 ms, and 50 a second at most
    timings, decision, plan = run(system, clock, rate_per_s=100.0, max_duration_s=40.0)
    assert decision.outcome == "FAIL"
    assert timings.latency_ns.max() > 1000 * MS
    assert len(timings.latency_ns) == plan.counts[0]


def test_the_closed_loop_does_not_see_the_queue_of_the_same_system():
    clock = ManualClock()
    found = closed_loop(Fixed(clock, 20.0), [1, 2, 3], clock=clock, duration_ns=1000 * MS)
    assert set(found.latency_ns.tolist()) == {20 * MS}
    assert found.started_ns.tolist() == [20 * MS * place for place in range(50)]


def test_a_hopelessly_slow_system_is_not_waited_for():
    clock = ManualClock()
    system = Fixed(clock, 3000.0)
    timings, decision, plan = run(system, clock, max_duration_s=40.0)
    assert decision.outcome == "FAIL"
    assert clock.now_ns() < 11_000 * MS  # the first look at 5 s or later, and at most one request more
    assert timings.num_unanswered == plan.counts[0] - system.calls
    assert timings.over(50 * MS).all()


def test_a_good_system_passes_at_the_first_look_that_can():
    clock = ManualClock()
    timings, decision, plan = run(Fixed(clock, 1.0), clock)
    assert (decision.outcome, len(timings.latency_ns)) == ("PASS", plan.counts[0])
    assert 4900 * MS <= clock.now_ns() <= 5100 * MS  # all that was scheduled in the first five seconds


def test_no_verdict_before_the_shortest_period():
    clock = ManualClock()
    run(Fixed(clock, 1.0), clock, rate_per_s=1000.0, min_duration_s=30.0)
    assert 29_900 * MS <= clock.now_ns() <= 31_000 * MS


def test_a_system_at_the_edge_is_undecided_to_the_end():
    clock = ManualClock()
    system = Fixed(clock, 1.0, fails=lambda number: number % 100 == 0)
    timings, decision, plan = run(system, clock)
    assert decision.outcome == "INVALID"
    assert decision.further_clean > 0
    assert len(timings.latency_ns) == plan.counts[-1]
    assert 59_000 * MS <= clock.now_ns() <= 60_100 * MS


def test_a_failed_request_counts_as_over_the_limit_however_fast():
    clock = ManualClock()
    timings, decision, _ = run(Fixed(clock, 0.1, fails=lambda number: number % 10 == 3), clock)
    assert decision.outcome == "FAIL"
    assert timings.first_failure == "ValueError: request 3 broke"
    assert timings.failed.sum() == timings.over(50 * MS).sum() > 0


def test_a_latency_at_the_limit_is_within_it():
    clock = ManualClock()
    found = closed_loop(Fixed(clock, 50.0), [1], clock=clock, duration_ns=0)
    assert (found.over(50 * MS).tolist(), found.over(50 * MS - 1).tolist()) == ([False], [True])


def test_the_null_system_takes_no_time_on_an_ideal_clock():
    clock = ManualClock()
    timings, decision, _ = run(null_system, clock)
    assert not timings.latency_ns.any()
    assert decision.outcome == "PASS"


def test_nothing_arrives_nothing_is_measured():
    timings, decision, _ = run(null_system, ManualClock(), rate_per_s=1e-9)
    assert (len(timings.latency_ns), decision.outcome) == (0, "INVALID")


def test_interrupts_are_not_swallowed_as_failures():
    def interrupted(request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        closed_loop(interrupted, [1], clock=ManualClock(), duration_ns=0)


def test_the_real_clock_waits_until_the_moment_and_not_less():
    clock = MonotonicClock()
    moment_ns = clock.now_ns() + MS
    clock.sleep_until_ns(moment_ns)
    assert clock.now_ns() >= moment_ns
    clock.sleep_until_ns(moment_ns)  # in the past: returns
