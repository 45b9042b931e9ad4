"""From measurements to a verdict: what counts, and who is to blame."""

import numpy as np
import pytest
from pydantic import ValidationError

from serving.gate.host import Calibration, Host, Usage, busy_signs, calibrate, describe, usage
from serving.gate.measure import Timings
from serving.gate.policy import Budget
from serving.gate.report import Record, Run, Verdict, blocks, latencies, verdict_of
from serving.gate.rule import Plan

MS = 1_000_000
QUIET = Calibration(gflops=80.0, spread=1.03, cpu_share=0.99)
BUDGET = Budget(limit_ms=10.0, rate_per_s=100.0)
RECORD = Record(bundle_digest="0" * 64, requests_digest="1" * 64, load_ms=5.0, peak_memory_bytes=10**8)


def host(**changes):
    fields = {
        "processor": "p",
        "num_cpus": 2,
        "pinned_cpu": 1,
        "system": "s",
        "versions": {},
        "threads": 1,
        "before": QUIET,
        "after": QUIET,
        "cpu_s": 1.0,
        "waited_s": 0.01,
        "involuntary_switches": 3,
    }
    return Host(**(fields | changes))


def timings(latency_ms, failed=()):
    latency_ns = (np.asarray(latency_ms, dtype=float) * MS).astype(np.int64)
    flags = np.zeros(len(latency_ns), dtype=np.bool_)
    flags[list(failed)] = True
    return Timings(np.arange(len(latency_ns)) * 10 * MS, latency_ns, flags)


def verdict(opened, *, on=None, closed_ms=1.0, null_ms=0.1):
    plan = Plan((len(opened.latency_ns),), 0.95)
    return verdict_of(
        Run(
            budget=BUDGET,
            seed=1,
            plan=plan,
            warm_up=timings([1.0]),
            null=timings([null_ms]),
            closed=timings([closed_ms]),
            opened=opened,
            host=on or host(),
            num_candidates=[3, 5, 9],
            record=RECORD,
        )
    )


GOOD, BAD = timings([1.0] * 500), timings([1.0] * 400 + [11.0] * 100)

BUSY = [
    {"before": Calibration(gflops=80.0, spread=1.5, cpu_share=0.99)},
    {"after": Calibration(gflops=80.0, spread=1.0, cpu_share=0.7)},
    {"after": Calibration(gflops=50.0, spread=1.0, cpu_share=1.0)},
    {"before": Calibration(gflops=50.0, spread=1.0, cpu_share=1.0)},
    {"involuntary_switches": 200},
    {"waited_s": 0.5},
]


def test_a_quiet_host_shows_no_signs():
    assert busy_signs(host()) == ()
    assert busy_signs(host(cpu_s=0.001, involuntary_switches=5, waited_s=0.0)) == ()


@pytest.mark.parametrize("change", BUSY)
def test_a_busy_host_makes_a_fail_invalid_and_leaves_a_pass(change):
    assert len(busy_signs(host(**change))) == 1
    assert verdict(BAD).verdict == "FAIL"
    found = verdict(BAD, on=host(**change))
    assert found.verdict == "INVALID"
    assert "the host was busy" in found.reasons[1]
    assert verdict(GOOD, on=host(**change)).verdict == "PASS"


def test_a_student_of_which_no_request_is_near_the_limit_fails_on_any_host():
    assert verdict(timings([30.0] * 100), on=host(**BUSY[0]), closed_ms=20.1).verdict == "FAIL"
    assert verdict(timings([30.0] * 100), on=host(**BUSY[0]), closed_ms=19.9).verdict == "INVALID"


def test_a_limit_below_what_the_harness_takes_is_not_the_students_fault():
    assert verdict(BAD, null_ms=11.0).verdict == "INVALID"
    assert verdict(BAD, null_ms=9.0).verdict == "FAIL"


def test_too_few_requests_are_invalid_with_the_number_that_would_settle_it():
    found = verdict(timings([1.0] * 200))
    assert (found.verdict, found.further_clean_requests, found.exit_code) == ("INVALID", 99, 2)
    assert "99 further requests" in found.reasons[0]


def test_failed_requests_are_misses():
    found = verdict(timings([1.0] * 500, failed=range(50)))
    assert (found.verdict, found.num_failed, found.num_over, found.exit_code) == ("FAIL", 50, 50, 1)


def test_percentiles_are_latencies_that_occurred():
    found = latencies(timings(range(1, 201)), 150 * MS)
    assert found.model_dump() == {
        "num_requests": 200,
        "num_over": 50,
        "min_ms": 1.0,
        "p50_ms": 100.0,
        "p90_ms": 180.0,
        "p95_ms": 190.0,
        "p99_ms": 198.0,
        "max_ms": 200.0,
    }
    assert latencies(timings([]), MS) is None


def test_blocks_part_the_run_by_time_and_show_where_the_misses_were():
    found = blocks(timings([1.0] * 80 + [20.0] * 20), 10 * MS)
    assert [(block.num_requests, block.num_over) for block in found] == [(20, 0)] * 4 + [(20, 20)]
    late = Timings(np.array([0, 99 * MS]), np.array([MS, MS]), np.array([False, False]))
    assert [block is None for block in blocks(late, MS)] == [False, True, True, True, False]
    assert blocks(timings([]), MS) == (None,) * 5


def test_a_verdict_survives_json():
    found = verdict(BAD)
    assert Verdict.model_validate_json(found.model_dump_json()) == found
    assert found.model_dump()["format"] == 1
    with pytest.raises(ValidationError):
        Verdict.model_validate_json(found.model_dump_json().replace('"format":1', '"format":2'))
    assert (found.median_candidates, found.max_candidates, found.num_warm_up) == (5, 9, 1)
    assert verdict(GOOD).exit_code == 0


def test_a_run_without_arrivals_has_no_latencies():
    found = verdict(timings([]))
    assert (found.verdict, found.open_loop, found.further_clean_requests) == ("INVALID", None, 299)


def test_this_host_can_be_described():
    before, earlier = calibrate(0.01), usage()
    used = usage().since(earlier)
    found = describe(pinned_cpu=None, before=before, after=before, used=used)
    assert found.before.gflops > 0
    assert found.before.spread >= 1
    assert 0 < found.before.cpu_share <= 1
    assert found.cpu_s >= 0
    assert {"python", "numpy", "onnxruntime"} == found.versions.keys()
    assert Usage(5, 4, 3).since(Usage(1, 1, 1)) == Usage(4, 3, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"limit_ms": 0},
        {"percentile": 1.0},
        {"confidence": 0.0},
        {"rate_per_s": 0},
        {"candidates": 0},
        {"p99": 3},
        {"min_duration_s": 61.0},
    ],
)
def test_malformed_budgets_are_refused(change):
    with pytest.raises(ValidationError):
        Budget(**({"limit_ms": 10.0, "rate_per_s": 5.0} | change))
