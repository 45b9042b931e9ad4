"""Student, twin and teacher on the same rows: differences, the transfer ratio, and when there is none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from eval.compare import Comparison, compare, compare_seeds
from eval.intervals import Bootstrap
from eval.metrics.entropy import normalized_entropy
from eval.metrics.ranking import auc
from eval.predictions import Predictions
from serving.errors import MismatchError

NUM_USERS, PER_USER = 300, 10


def predictions(noise: float, *, seed: int = 0, num_users: int = NUM_USERS) -> Predictions:
    """Rows whose true logits are seen through `noise`; labels are the same for every noise and seed."""
    world = np.random.default_rng(99)
    size = num_users * PER_USER
    logits = world.normal(0, 1.5, size)
    labels = (world.random(size) < 1 / (1 + np.exp(-logits))).astype(float)
    seen = logits + noise * np.random.default_rng(seed).normal(size=size)
    user = np.repeat(np.arange(num_users), PER_USER)
    return Predictions(
        row_id=np.arange(size),
        request=user,
        user=user,
        time=np.zeros(size),
        surface=np.zeros(size),
        probabilities={"click": 1 / (1 + np.exp(-seen))},
        labels={"click": labels},
        surfaces=("home",),
        model_digest="a" * 64,
        data_fingerprint="b" * 64,
    )


def three(seed: int = 0, *, student: float = 0.6) -> Comparison:
    return compare(
        predictions(student, seed=seed), predictions(1.0, seed=seed), predictions(0.1, seed=7), objective="click"
    )


def test_numbers_are_those_of_each_table_and_differences_are_theirs() -> None:
    result = three()
    tables = {"student": predictions(0.6), "twin": predictions(1.0), "teacher": predictions(0.1, seed=7)}
    ne = {name: normalized_entropy(t.labels["click"], t.probabilities["click"]) for name, t in tables.items()}
    assert result.ne_student == pytest.approx(ne["student"])
    assert result.ne_twin == pytest.approx(ne["twin"])
    assert result.ne_teacher == pytest.approx(ne["teacher"])
    assert result.student_minus_twin.estimate == pytest.approx(ne["student"] - ne["twin"])
    assert result.transfer_ratio.value == pytest.approx((ne["twin"] - ne["student"]) / (ne["twin"] - ne["teacher"]))
    areas = {name: auc(t.labels["click"], t.probabilities["click"]) for name, t in tables.items()}
    assert [result.auc_student, result.auc_twin, result.auc_teacher] == pytest.approx(list(areas.values()))
    assert result.student_minus_twin.high < 0
    assert result.transfer_ratio.low is not None
    assert result.transfer_ratio.high is not None
    assert result.transfer_ratio.low < result.transfer_ratio.value < result.transfer_ratio.high


def test_the_order_of_rows_does_not_matter() -> None:
    shuffled = predictions(1.0).take(np.random.default_rng(1).permutation(NUM_USERS * PER_USER))
    assert compare(predictions(0.6), shuffled, predictions(0.1, seed=7), objective="click") == three()


def test_the_ends_of_the_transfer_ratio_are_twin_and_teacher() -> None:
    twin, teacher = predictions(1.0), predictions(0.1)
    assert compare(twin, twin, teacher, objective="click").transfer_ratio.value == 0
    assert compare(teacher, twin, teacher, objective="click").transfer_ratio.value == 1


def test_a_teacher_no_better_than_the_twin_gives_no_ratio_but_a_reason() -> None:
    result = compare(predictions(0.6), predictions(0.6, seed=1), predictions(0.6, seed=2), objective="click")
    assert result.transfer_ratio.value is None
    assert "is not above 3 standard errors" in (result.transfer_ratio.reason or "")
    worse = compare(predictions(0.6), predictions(0.1), predictions(1.0), objective="click")
    assert worse.transfer_ratio.value is None


def test_without_a_teacher_there_is_a_reason() -> None:
    result = compare(predictions(0.6), predictions(1.0), None, objective="click")
    assert result.ne_teacher is None
    assert result.twin_minus_teacher is None
    assert result.transfer_ratio.reason == "no teacher predictions"


def test_one_class_gives_no_ratio_but_a_reason() -> None:
    def negative(table: Predictions) -> Predictions:
        return replace(table, labels={"click": np.zeros(table.num_rows)})

    result = compare(*(negative(predictions(x)) for x in (0.6, 1.0, 0.1)), objective="click")
    assert math.isnan(result.ne_student)
    assert "undefined" in (result.transfer_ratio.reason or "")


def test_other_rows_labels_users_stores_and_objectives_are_refused() -> None:
    good = predictions(0.6)
    labels = {"click": 1 - good.labels["click"]}
    for bad, message in [
        (good.take(np.arange(100)), "twin: row_id: expected the student's 3,000 rows; got 100 rows, 100 of them"),
        (replace(good, row_id=good.row_id + 1), "3,000 rows, 2,999 of them the student's"),
        (replace(good, labels=labels), "twin: labels: expected the student's labels; got 3,000 other ones"),
        (replace(good, user=good.user + 1), "twin: user"),
        (replace(good, data_fingerprint="c" * 64), "twin: data_fingerprint: expected bbb.*got ccc"),
        (replace(good, probabilities={"buy": labels["click"]}, labels={"buy": labels["click"]}), "twin: click"),
    ]:
        with pytest.raises(MismatchError, match=message):
            compare(good, bad, None, objective="click")


def test_seeds_are_averaged_and_their_spread_is_the_standard_error() -> None:
    seeds = [three(seed) for seed in range(3)]
    result = compare_seeds(seeds)
    values = [one.ne_student for one in seeds]
    mean = sum(values) / 3
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    assert result.ne_student.mean == pytest.approx(mean)
    assert result.ne_student.standard_error == pytest.approx(spread / math.sqrt(3))
    assert result.ne_student.num_seeds == 3
    gains = sum(one.ne_twin - one.ne_student for one in seeds)
    gaps = sum(one.ne_twin - one.ne_teacher for one in seeds if one.ne_teacher is not None)
    assert result.transfer_ratio.value == pytest.approx(gains / gaps)
    assert result.ne_teacher is not None
    assert result.ne_teacher.standard_error == 0, "one teacher for all seeds"
    differences = [one.ne_student - one.ne_twin for one in seeds]
    middle = sum(differences) / 3
    reach = 2 * math.sqrt(sum((value - middle) ** 2 for value in differences) / 2 / 3)
    found = result.student_minus_twin
    assert (found.low, found.high) == pytest.approx((middle - reach, middle + reach))


def test_one_seed_has_no_seed_error_and_keeps_its_own_ratio() -> None:
    only = three()
    result = compare_seeds([only])
    assert math.isnan(result.ne_student.standard_error)
    assert result.transfer_ratio == only.transfer_ratio
    paired = only.student_minus_twin
    assert (result.student_minus_twin.low, result.student_minus_twin.high) == (paired.low, paired.high)
    assert result.student_minus_twin.is_clear
    same = compare(predictions(0.6), predictions(0.6), None, objective="click")
    assert not compare_seeds([same]).student_minus_twin.is_clear


def test_seeds_that_disagree_on_the_gap_give_no_ratio() -> None:
    lucky = three(0)
    unlucky = compare(predictions(0.6), predictions(0.1), predictions(1.0), objective="click")
    result = compare_seeds([lucky, unlucky])
    assert result.transfer_ratio.value is None
    assert "standard errors" in (result.transfer_ratio.reason or "")


def test_seeds_on_other_rows_are_refused() -> None:
    fewer = compare(*(predictions(x, num_users=50) for x in (0.6, 1.0, 0.1)), objective="click")
    bare = compare(predictions(0.6), predictions(1.0), None, objective="click", bootstrap=Bootstrap(50))
    for other in (fewer, bare):
        with pytest.raises(MismatchError, match="seeds: expected all compared on the same rows"):
            compare_seeds([three(), other])
    with pytest.raises(ValueError, match="at least one comparison"):
        compare_seeds([])
    assert compare_seeds([bare, bare]).transfer_ratio.reason == "no teacher predictions"
