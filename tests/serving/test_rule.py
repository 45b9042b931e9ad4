"""The exact rule: the published counts, big-fraction arithmetic, and what a whole run may promise."""

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gate.rule import at_least, at_most, decide, plan_looks, requests_to_pass

OVER = (0, 1, 2, 5, 10, 20, 50)
# Smallest passing runs: percentile, confidence → requests, for each number over the limit in `OVER`.
COUNTS = {
    (0.5, 0.99): (7, 11, 14, 22, 35, 59, 128),
    (0.9, 0.99): (44, 64, 81, 127, 197, 325, 681),
    (0.95, 0.95): (59, 93, 124, 208, 336, 577, 1260),
    (0.95, 0.99): (90, 130, 165, 259, 398, 656, 1372),
    (0.99, 0.95): (299, 473, 628, 1049, 1693, 2902, 6323),
    (0.99, 0.99): (459, 662, 838, 1307, 2010, 3304, 6898),
    (0.999, 0.95): (2995, 4742, 6294, 10511, 16959, 29058, 63281),
    (0.999, 0.99): (4603, 6636, 8403, 13105, 20140, 33097, 69058),
}
shares = st.floats(0.001, 0.999)


def exact_at_most(over, num_requests, share):
    q = Fraction(share)
    return float(
        sum(
            math.comb(num_requests, k) * q**k * (1 - q) ** (num_requests - k)
            for k in range(min(over, num_requests) + 1)
        )
    )


@pytest.mark.parametrize(("percentile", "confidence"), COUNTS)
def test_published_counts(percentile, confidence):
    found = tuple(requests_to_pass(over, percentile=percentile, confidence=confidence) for over in OVER)
    assert found == COUNTS[percentile, confidence]


@given(st.integers(0, 60), st.integers(0, 60), shares)
def test_tails_are_those_of_exact_fractions(over, num_requests, share):
    below = exact_at_most(over, num_requests, share)
    assert at_most(over, num_requests, share) == pytest.approx(below, rel=1e-9, abs=1e-15)
    from_over = 1.0 if over == 0 else 1 - exact_at_most(over - 1, num_requests, share)
    assert at_least(over, num_requests, share) == pytest.approx(from_over, rel=1e-9, abs=1e-9)


def test_tails_of_long_runs_stay_exact():
    # P(Binomial(n, q) <= 0) = (1 - q)^n, and the two tails overlap in one term.
    assert at_most(0, 100_000, 1e-4) == pytest.approx(math.exp(100_000 * math.log1p(-1e-4)), rel=1e-9)
    both = at_most(1000, 100_000, 0.01) + at_least(1001, 100_000, 0.01)
    assert both == pytest.approx(1.0, abs=1e-7)


@given(st.integers(0, 40), st.floats(0.3, 0.999), st.floats(0.5, 0.999))
def test_the_smallest_passing_run_is_the_smallest(over, percentile, confidence):
    enough = requests_to_pass(over, percentile=percentile, confidence=confidence)
    assert decide(enough, over, percentile=percentile, confidence=confidence).outcome == "PASS"
    assert decide(enough - 1, over, percentile=percentile, confidence=confidence).outcome != "PASS"


@given(st.integers(0, 400), st.integers(0, 400), st.floats(0.5, 0.999), st.floats(0.6, 0.999))
def test_further_clean_requests_are_what_it_takes(num_requests, over, percentile, confidence):
    over = min(over, num_requests)
    decision = decide(num_requests, over, percentile=percentile, confidence=confidence)
    after = decide(num_requests + decision.further_clean, over, percentile=percentile, confidence=confidence)
    assert after.outcome == "PASS"
    if decision.further_clean:
        almost = num_requests + decision.further_clean - 1
        assert decide(almost, over, percentile=percentile, confidence=confidence).outcome != "PASS"


@given(st.integers(1, 60), st.floats(0.5, 0.999), st.floats(0.6, 0.999))
def test_more_misses_never_improve_the_outcome(num_requests, percentile, confidence):
    order = {"PASS": 0, "INVALID": 1, "FAIL": 2}
    outcomes = [
        order[decide(num_requests, over, percentile=percentile, confidence=confidence).outcome]
        for over in range(num_requests + 1)
    ]
    assert outcomes == sorted(outcomes)


def test_nothing_measured_is_invalid_and_all_over_fails():
    assert decide(0, 0, percentile=0.99, confidence=0.95).outcome == "INVALID"
    assert decide(5, 5, percentile=0.99, confidence=0.95).outcome == "FAIL"


def plan(rate=50.0, *, percentile=0.99, confidence=0.95, first_s=5.0, last_s=60.0):
    arrivals = np.arange(1, int(rate * last_s) + 1) / rate
    return plan_looks(arrivals, percentile=percentile, confidence=confidence, first_s=first_s, last_s=last_s)


def test_looks_start_where_a_clean_run_passes_and_end_with_the_run():
    # 5, 10, 20, 40, 60 s at 50 a second; 250 clean requests do not pass, 500 do at a quarter of the risk.
    assert plan().counts == (500, 1000, 2000, 3000)
    assert plan().confidence == pytest.approx(1 - 0.05 / 4)


def test_a_run_too_short_to_pass_is_looked_at_once_with_the_whole_risk():
    assert (plan(rate=1.0).counts, plan(rate=1.0).confidence) == ((60,), pytest.approx(0.95))


def test_a_look_next_to_the_last_one_is_left_out():
    assert plan(rate=400.0, first_s=5.0, last_s=12.0).counts == (2000, 4800)
    assert plan(rate=400.0, first_s=5.0, last_s=5.0).counts == (2000,)


def test_no_arrivals_make_no_looks():
    assert plan_looks(np.array([]), percentile=0.99, confidence=0.95, first_s=1.0, last_s=2.0).counts == ()


@given(st.floats(0.5, 500), st.floats(0, 60), st.floats(0.1, 60))
def test_looks_ascend_respect_the_shortest_period_and_share_the_risk(rate, first_s, last_s):
    first_s = min(first_s, last_s)
    found = plan(rate, first_s=first_s, last_s=last_s)
    assert list(found.counts) == sorted(set(found.counts))
    assert len(found.counts) <= 6
    assert len(found.counts) * (1 - found.confidence) <= 0.05 + 1e-9
    if found.counts:
        assert found.counts[-1] == int(rate * last_s)
        assert found.counts[0] >= math.floor(rate * first_s)


PAGE = (Path(__file__).parents[2] / "docs" / "latency-gate.md").read_text()
PUBLISHED = [
    [float(cell.strip(" %")) / 100 for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| [0-9.]+ % \|", line)
]


def outcomes(share_over, *, runs, seed, **budget):
    """Outcomes of whole runs, each request independently over the limit with this probability."""
    looks = plan(**budget)
    rng = np.random.default_rng(seed)
    counts = {"PASS": 0, "FAIL": 0, "INVALID": 0}
    decided = {}
    for _ in range(runs):
        over = done = 0
        outcome = "INVALID"
        for count in looks.counts:
            over += int(rng.binomial(count - done, share_over))
            done = count
            if (count, over) not in decided:
                confidence = looks.confidence
                decided[count, over] = decide(count, over, percentile=0.99, confidence=confidence).outcome
            outcome = decided[count, over]
            if outcome != "INVALID":
                break
        counts[outcome] += 1
    return {outcome: number / runs for outcome, number in counts.items()}


@pytest.mark.parametrize("rate", [8.0, 50.0, 400.0])
def test_at_the_edge_a_whole_run_with_its_looks_rarely_passes_and_rarely_fails(rate):
    # Standard error of a rate of 5 % in 4000 runs: 0.35 %; three of them.
    found = outcomes(0.01, runs=4000, seed=1, rate=rate)
    assert found["PASS"] <= 0.05 + 0.0105
    assert found["FAIL"] <= 0.05 + 0.0105


def test_a_system_just_over_the_edge_passes_less_than_one_just_under_it():
    assert outcomes(0.0101, runs=4000, seed=2)["PASS"] <= 0.05 + 0.0105


def test_a_system_well_within_its_limit_passes_and_one_well_beyond_fails():
    assert outcomes(0.002, runs=1000, seed=3)["PASS"] >= 0.95
    assert outcomes(0.05, runs=1000, seed=4)["FAIL"] >= 0.95


def test_identical_systems_do_not_get_pass_in_one_run_and_fail_in_another():
    for share in (0.004, 0.007, 0.01, 0.013, 0.02):
        found = outcomes(share, runs=2000, seed=5)
        # Of two runs of one system, PASS and FAIL together have at most the risk on the wrong side.
        assert min(found["PASS"], found["FAIL"]) <= 0.05 + 0.015


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]:.4f}")
def test_the_simulation_that_the_page_shows(row):
    share, passed, failed, invalid = row
    found = outcomes(share, runs=4000, seed=6)
    # Three standard errors of the widest binomial at 4000 runs, and the page's rounding.
    assert found == pytest.approx({"PASS": passed, "FAIL": failed, "INVALID": invalid}, abs=0.025)


def test_the_page_shows_both_sides_of_the_edge():
    shares = [row[0] for row in PUBLISHED]
    assert min(shares) < 0.01 < max(shares)
    assert 0.01 in shares
