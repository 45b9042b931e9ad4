"""The rule that decides: exact binomial tails, and a plan of when to look, so that looking often does not buy a PASS.

Let q = 1 - percentile be the share of requests that may be over the limit. After `over` of n requests were over it:

    PASS     P(Binomial(n, q) <= over) <= 1 - confidence    a system at the edge would rarely look this good
    FAIL     P(Binomial(n, q) >= over) <= 1 - confidence    a system at the edge would rarely look this bad
    INVALID  otherwise

Source: the early-stopping rule of MLPerf LoadGen; the split of the risk over several looks is Bonferroni's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["PASS", "FAIL", "INVALID"]
_EARLIEST = 32  # no look before this part of the longest period; five doublings, so six looks at most
_NEAR = 1.25  # a look this near to the last one would take its risk and gain nothing


@dataclass(frozen=True, slots=True)
class Decision:
    """What the counts say.

    Attributes:
        outcome: PASS, FAIL, or INVALID where they do not say.
        further_clean: requests, all within the limit, that would make it a PASS; 0 for PASS.
    """

    outcome: Outcome
    further_clean: int


@dataclass(frozen=True, slots=True)
class Plan:
    """When to look.

    Attributes:
        counts: numbers of requests after which the rule is asked, ascending.
        confidence: of each single look, such that all together keep the budget's.
    """

    counts: tuple[int, ...]
    confidence: float


def at_most(over: int, num_requests: int, share: float) -> float:
    """P(Binomial(num_requests, share) <= over).

    Args:
        over: at least 0.
        num_requests: at least 0.
        share: in (0, 1).

    Example:
        >>> at_most(0, 2, 0.5), at_most(1, 2, 0.5), at_most(2, 2, 0.5)
        (0.25, 0.75, 1.0)
    """
    if over >= num_requests:
        return 1.0
    return _sum(_log_probabilities(over, num_requests, share))


def at_least(over: int, num_requests: int, share: float) -> float:
    """P(Binomial(num_requests, share) >= over): the mirrored tail, by counting the requests within the limit.

    Example:
        >>> at_least(1, 2, 0.5), at_least(2, 2, 0.5)
        (0.75, 0.25)
    """
    return at_most(num_requests - over, num_requests, 1.0 - share) if over <= num_requests else 0.0


def requests_to_pass(over: int, *, percentile: float, confidence: float) -> int:
    """The smallest number of requests that PASSes with `over` of them over the limit.

    Example:
        >>> requests_to_pass(0, percentile=0.99, confidence=0.95)
        299
    """
    share, risk = 1.0 - percentile, 1.0 - confidence
    enough = over + 1
    while at_most(over, enough, share) > risk:
        enough *= 2
    too_few = max(over, enough // 2)
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if at_most(over, middle, share) > risk:
            too_few = middle
        else:
            enough = middle
    return enough


def decide(num_requests: int, over: int, *, percentile: float, confidence: float) -> Decision:
    """PASS, FAIL or INVALID for `over` of `num_requests` beyond the limit.

    Example:
        >>> decide(299, 0, percentile=0.99, confidence=0.95)
        Decision(outcome='PASS', further_clean=0)
        >>> decide(298, 0, percentile=0.99, confidence=0.95)
        Decision(outcome='INVALID', further_clean=1)
    """
    share, risk = 1.0 - percentile, 1.0 - confidence
    if at_most(over, num_requests, share) <= risk:
        return Decision("PASS", 0)
    further = requests_to_pass(over, percentile=percentile, confidence=confidence) - num_requests
    return Decision("FAIL" if at_least(over, num_requests, share) <= risk else "INVALID", further)


def plan_looks(
    arrivals_s: NDArray[np.float64], *, percentile: float, confidence: float, first_s: float, last_s: float
) -> Plan:
    """When the rule is asked during one run: at `first_s`, each doubling of it, and at `last_s`.

    A rule that is asked k times may pass an edge system k times as often; so each look gets 1/k of the risk. Early
    looks that no run could pass are left out, which leaves more risk to the others.

    Args:
        arrivals_s: [n] scheduled arrivals in seconds, ascending, none after `last_s`.
        percentile, confidence: the budget's.
        first_s, last_s: the shortest and the longest measured period in seconds.
    """
    moments: list[float] = []
    moment = max(first_s, last_s / _EARLIEST)
    while moment * _NEAR < last_s:
        moments.append(moment)
        moment *= 2
    moments.append(last_s)
    counts = sorted({int(count) for count in np.searchsorted(arrivals_s, moments, side="right") if count > 0})
    while len(counts) > 1 and not _can_pass(counts[0], percentile, _each(confidence, counts)):
        counts.pop(0)
    return Plan(tuple(counts), _each(confidence, counts))


def _each(confidence: float, looks: Sequence[int]) -> float:
    return 1.0 - (1.0 - confidence) / max(len(looks), 1)


def _can_pass(num_requests: int, percentile: float, confidence: float) -> bool:
    return at_most(0, num_requests, 1.0 - percentile) <= 1.0 - confidence


def _log_probabilities(over: int, num_requests: int, share: float) -> NDArray[np.float64]:
    """Logarithm of P(Binomial = k) for k = 0 ... over, each from the one before."""
    k = np.arange(over, dtype=np.float64)
    ratios = np.log((num_requests - k) / (k + 1.0)) + np.log(share) - np.log1p(-share)
    return num_requests * np.log1p(-share) + np.concatenate([[0.0], np.cumsum(ratios)])


def _sum(logs: NDArray[np.float64]) -> float:
    largest = logs.max()
    return min(1.0, float(np.exp(largest) * np.exp(logs - largest).sum()))
