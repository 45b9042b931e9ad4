"""Student beside twin beside teacher, on the same rows: what transfer brings, and how much of the gap it closes.

The twin is the student without transfer: same size, same rows, same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.intervals import STANDARD, Bootstrap, ClusteredRows, Interval, clustered_rows, difference, ratio
from eval.predictions import Predictions
from serving.errors import MismatchError, Problem

REQUIRED_ERRORS = 3
REMEDY = "Score the student, its twin and the teacher on the same rows of the same store."


@dataclass(frozen=True, slots=True)
class TransferRatio:
    """Share of the gap to the teacher that the student closes: (NE twin - NE student) / (NE twin - NE teacher).

    0 is no transfer, 1 is as good as the teacher.

    Attributes:
        value: the ratio; None if it would be noise.
        low: lower end of the interval, of the resampled users or of the seeds; None likewise.
        high: upper end, likewise.
        reason: why there is no value; None if there is one.

    Source: the gap share of Rec-Distill; a value only if the divisor exceeds three standard errors (ours: a ratio over
        noise says nothing).
    """

    value: float | None
    low: float | None
    high: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One seed's student, twin and teacher on the same rows; differences are paired, negative NE differences are gains.

    Attributes:
        num_rows: rows compared.
        num_users: users they come from; the clusters of the intervals.
        ne_student: normalised entropy of the student.
        ne_twin: that of the twin.
        ne_teacher: that of the teacher; None without one.
        auc_student: AUC of the student.
        auc_twin: that of the twin.
        auc_teacher: that of the teacher; None without one.
        student_minus_twin: NE difference: what transfer brought.
        twin_minus_teacher: NE difference: what there was to bring; None without a teacher.
        transfer_ratio: gap share.
    """

    num_rows: int
    num_users: int
    ne_student: float
    ne_twin: float
    ne_teacher: float | None
    auc_student: float
    auc_twin: float
    auc_teacher: float | None
    student_minus_twin: Interval
    twin_minus_teacher: Interval | None
    transfer_ratio: TransferRatio


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: over the seeds.
        standard_error: of the mean, from the spread of the seeds; NaN for a single seed.
        num_seeds: seeds.
    """

    mean: float
    standard_error: float
    num_seeds: int


@dataclass(frozen=True, slots=True)
class Difference(Estimate):
    """A mean difference over seeds, and how far it may be from the truth.

    Attributes:
        low: two standard errors below the mean; for a single seed the lower end of its paired interval over users.
        high: upper end, likewise.
    """

    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether 0 is out of reach; not where there is no interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """Means over several seeds; names as in `Comparison`."""

    num_rows: int
    ne_student: Estimate
    ne_twin: Estimate
    ne_teacher: Estimate | None
    auc_student: Estimate
    auc_twin: Estimate
    auc_teacher: Estimate | None
    student_minus_twin: Difference
    transfer_ratio: TransferRatio


def compare(
    student: Predictions,
    twin: Predictions,
    teacher: Predictions | None,
    *,
    objective: str,
    bootstrap: Bootstrap = STANDARD,
) -> Comparison:
    """Compare on the rows of the student whose label is known; the others must have scored exactly these.

    Raises:
        MismatchError: the row ids, labels or users differ, or an objective is missing.
    """
    tables = {"student": student, "twin": twin} | ({} if teacher is None else {"teacher": teacher})
    rows = _same_rows(tables, objective)
    num_users = rows["student"].num_clusters
    ne = {name: part.normalized_entropy() for name, part in rows.items()}
    auc = {name: part.auc() for name, part in rows.items()}
    once = np.ones((1, num_users))
    ne_values, auc_values = ({name: float(f(once)[0]) for name, f in group.items()} for group in (ne, auc))
    gained = bootstrap.interval(difference(ne["student"], ne["twin"]), num_users)
    gap = None
    share = TransferRatio(None, None, None, "no teacher predictions")
    if teacher is not None:
        gap = bootstrap.interval(difference(ne["twin"], ne["teacher"]), num_users)
        closed = ratio(difference(ne["twin"], ne["student"]), difference(ne["twin"], ne["teacher"]))
        share = _transfer_ratio(bootstrap.interval(closed, num_users), gap.estimate, gap.standard_error)
    return Comparison(
        num_rows=len(rows["student"].labels),
        num_users=num_users,
        ne_student=ne_values["student"],
        ne_twin=ne_values["twin"],
        ne_teacher=ne_values.get("teacher"),
        auc_student=auc_values["student"],
        auc_twin=auc_values["twin"],
        auc_teacher=auc_values.get("teacher"),
        student_minus_twin=gained,
        twin_minus_teacher=gap,
        transfer_ratio=share,
    )


def compare_seeds(comparisons: Sequence[Comparison]) -> SeedComparison:
    """Means over seeds; the transfer ratio is that of the mean gaps.

    The divisor's standard error joins both sources of noise, seeds and users: they are independent, so variances add.
    The ratio's interval reaches two standard errors over seeds to each side; with one seed it is that seed's own.

    Raises:
        MismatchError: the seeds were compared on different numbers of rows, or some without a teacher.
        ValueError: there is no seed.
    """
    if not comparisons:
        raise ValueError("expected at least one comparison; got none. Compare one seed first.")
    shapes = {(one.num_rows, one.ne_teacher is None) for one in comparisons}
    if len(shapes) > 1:
        got = ", ".join(f"{rows:,} rows {'without' if bare else 'with'} teacher" for rows, bare in sorted(shapes))
        raise MismatchError(Problem("seeds", "all compared on the same rows", got, REMEDY))
    first = comparisons[0]
    return SeedComparison(
        num_rows=first.num_rows,
        ne_student=_estimate([one.ne_student for one in comparisons]),
        ne_twin=_estimate([one.ne_twin for one in comparisons]),
        ne_teacher=_estimate_if_known([one.ne_teacher for one in comparisons]),
        auc_student=_estimate([one.auc_student for one in comparisons]),
        auc_twin=_estimate([one.auc_twin for one in comparisons]),
        auc_teacher=_estimate_if_known([one.auc_teacher for one in comparisons]),
        student_minus_twin=_difference([one.student_minus_twin for one in comparisons]),
        transfer_ratio=_transfer_ratio_of_seeds(comparisons),
    )


def _transfer_ratio_of_seeds(comparisons: Sequence[Comparison]) -> TransferRatio:
    gaps = [one.twin_minus_teacher for one in comparisons if one.twin_minus_teacher is not None]
    if len(comparisons) == 1 or not gaps:
        return comparisons[0].transfer_ratio
    gap = _estimate([one.estimate for one in gaps])
    of_users = float(np.mean([one.standard_error for one in gaps]))
    gains = np.array([-one.student_minus_twin.estimate for one in comparisons])
    value = float(gains.mean() / gap.mean) if gap.mean else np.nan
    # First-order error of a ratio of means: the spread of what the ratio leaves unexplained, over the divisor.
    residuals = gains - value * np.array([one.estimate for one in gaps])
    spread = 2 * float(residuals.std(ddof=1)) / np.sqrt(len(gains)) / abs(gap.mean) if gap.mean else np.nan
    interval = Interval(value, value - spread, value + spread, spread / 2, len(gains), 0)
    return _transfer_ratio(interval, gap.mean, float(np.hypot(gap.standard_error, of_users)))


def _transfer_ratio(share: Interval, gap: float, standard_error: float) -> TransferRatio:
    if not np.isfinite(gap) or not np.isfinite(standard_error):
        return TransferRatio(None, None, None, "the gap between twin and teacher is undefined: one class, or one user")
    if gap <= REQUIRED_ERRORS * standard_error:
        reason = (
            f"the teacher's lead over the twin, {gap:.5f} NE, is not above {REQUIRED_ERRORS} standard errors "
            f"of {standard_error:.5f}"
        )
        return TransferRatio(None, None, None, reason)
    return TransferRatio(share.estimate, share.low, share.high, None)


def _same_rows(tables: dict[str, Predictions], objective: str) -> dict[str, ClusteredRows]:
    lacking = [
        Problem(f"{name}: {objective}", "an objective that it predicts", ", ".join(table.objectives) or "none", REMEDY)
        for name, table in tables.items()
        if objective not in table.probabilities
    ]
    if lacking:
        raise MismatchError(lacking)
    scored = {name: table.scored(objective) for name, table in tables.items()}
    problems: list[Problem] = []
    first = scored["student"]
    for name, other in scored.items():
        if not np.array_equal(first.row_id, other.row_id):
            shared = len(np.intersect1d(first.row_id, other.row_id, assume_unique=True))
            got = f"{other.num_rows:,} rows, {shared:,} of them the student's"
            problems.append(Problem(f"{name}: row_id", f"the student's {first.num_rows:,} rows", got, REMEDY))
        elif not np.array_equal(first.labels[objective], other.labels[objective]):
            changed = int(np.sum(first.labels[objective] != other.labels[objective]))
            problems.append(Problem(f"{name}: labels", "the student's labels", f"{changed:,} other ones", REMEDY))
        elif not np.array_equal(first.user, other.user):
            changed = int(np.sum(first.user != other.user))
            problems.append(Problem(f"{name}: user", "the student's users", f"{changed:,} other ones", REMEDY))
    problems += [
        Problem(f"{name}: data_fingerprint", first.data_fingerprint[:12], other.data_fingerprint[:12], REMEDY)
        for name, other in scored.items()
        if other.data_fingerprint != first.data_fingerprint
    ]
    if problems:
        raise MismatchError(problems)
    return {
        name: clustered_rows(table.labels[objective], table.probabilities[objective], table.user)
        for name, table in scored.items()
    }


def _estimate(values: Sequence[float]) -> Estimate:
    number = len(values)
    if number > 1 and len(set(values)) == 1:  # one teacher for all seeds: rounding in the mean is no spread
        return Estimate(values[0], 0.0, number)
    error = float(np.std(values, ddof=1) / np.sqrt(number)) if number > 1 else np.nan
    return Estimate(float(np.mean(values)), error, number)


def _difference(seeds: Sequence[Interval]) -> Difference:
    over_seeds = _estimate([one.estimate for one in seeds])
    mean, reach = over_seeds.mean, 2 * over_seeds.standard_error
    low, high = (seeds[0].low, seeds[0].high) if len(seeds) == 1 else (mean - reach, mean + reach)
    return Difference(mean, over_seeds.standard_error, over_seeds.num_seeds, low, high)


def _estimate_if_known(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return _estimate(known) if known else None
