"""Figures are plain metrics of the rows; leads are differences seed by seed; other rows are refused."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.compare import ALL, compare_models, remembered
from benchmarks.report import cells, header, markdown, without
from eval.intervals import Bootstrap
from eval.predictions import Predictions
from serving.errors import MismatchError

BOOTSTRAP = Bootstrap(num_resamples=50)
LABELS = np.array([0, 1, 0, 1, 1, 0, 1, 0] * 10, dtype=np.float64)


def table(seed):
    generator = np.random.default_rng(seed)
    number = len(LABELS)
    return Predictions(
        row_id=np.arange(number),
        request=np.arange(number) // 4,
        user=np.arange(number) // 8,
        time=np.arange(number),
        surface=(np.arange(number) // 4 % 2).astype(np.int32),
        probabilities={"click": np.clip(0.3 * LABELS + 0.7 * generator.random(number), 0, 1)},
        labels={"click": LABELS},
        surfaces=("feed", "search", "unused"),
        model_digest=str(seed),
        data_fingerprint="one",
    )


def pairs_auc(one):
    y, p = one.labels["click"], one.probabilities["click"]
    left, right = p[y == 1][:, None], p[y == 0][None, :]
    return np.mean((left > right) + 0.5 * (left == right))


def test_a_figure_is_the_mean_over_seeds_and_a_lead_that_of_the_differences():
    ours, theirs = [table(1), table(2)], [table(3), table(4)]
    found = compare_models({"ours": ours, "theirs": theirs}, "click", bootstrap=BOOTSTRAP)
    assert list(found) == [ALL, "feed", "search"]
    whole = found[ALL]
    expected = [np.mean([pairs_auc(one) for one in seeds]) for seeds in (ours, theirs)]
    assert whole.models["ours"]["auc"].mean == pytest.approx(expected[0])
    assert whole.leads["theirs"]["auc"].mean == pytest.approx(expected[0] - expected[1])
    assert whole.leads["theirs"]["auc"].low <= expected[0] - expected[1] <= whole.leads["theirs"]["auc"].high
    gaps = [pairs_auc(one) - pairs_auc(other) for one, other in zip(ours, theirs, strict=True)]
    assert whole.leads["theirs"]["auc"].seed_error == pytest.approx(abs(gaps[0] - gaps[1]) / 2)
    assert (whole.num_rows, whole.num_positives, whole.num_users) == (80, 40, 10)


def test_a_model_of_one_table_stands_beside_every_seed():
    ours, trees = [table(1), table(2)], table(3)
    lead = compare_models({"ours": ours, "trees": [trees]}, "click", bootstrap=BOOTSTRAP)[ALL].leads["trees"]["auc"]
    assert lead.mean == pytest.approx(np.mean([pairs_auc(one) for one in ours]) - pairs_auc(trees))


def test_a_surface_counts_its_own_rows_only():
    ours, theirs = table(1), table(2)
    found = compare_models({"ours": [ours], "theirs": [theirs]}, "click", bootstrap=BOOTSTRAP)
    assert found["search"].models["ours"]["auc"].mean == pytest.approx(pairs_auc(ours.on_surface("search")))


def test_the_order_of_rows_does_not_matter_but_their_set_and_labels_do():
    ours, theirs = table(1), table(2)
    shuffled = theirs.take(np.random.default_rng(0).permutation(len(LABELS)))
    plain = compare_models({"ours": [ours], "theirs": [theirs]}, "click", bootstrap=BOOTSTRAP)
    assert compare_models({"ours": [ours], "theirs": [shuffled]}, "click", bootstrap=BOOTSTRAP) == plain
    flipped = replace(theirs, labels={"click": 1 - LABELS})
    for other in (theirs.take(np.arange(70)), flipped, replace(theirs, data_fingerprint="two")):
        with pytest.raises(MismatchError):
            compare_models({"ours": [ours], "theirs": [other]}, "click", bootstrap=BOOTSTRAP)


def test_a_remembered_statistic_is_the_same_and_computed_once():
    calls = []

    def total(counts):
        calls.append(len(counts))
        return counts.sum(1)

    once, counts = remembered(total), np.arange(6.0).reshape(2, 3)
    assert once(counts).tolist() == once(counts.copy()).tolist() == [3.0, 12.0]
    assert once(counts + 1).tolist() == [6.0, 15.0]
    assert len(calls) == 2


def test_tables_have_a_cell_for_every_column():
    slices = compare_models({"ours": [table(1)], "theirs": [table(2)]}, "click", bootstrap=BOOTSTRAP)
    columns, lines = header(slices), cells("click", slices)
    assert {len(line) for line in lines} == {len(columns)}
    text = markdown("title", columns, lines).splitlines()
    assert {line.count("|") for line in text if line.startswith("|")} == {len(columns) + 1}
    shown, *short = without(columns, lines, names=("NE", "cal."))
    assert shown == ["objective", "rows of", "rows", "positives", "AUC ours", "AUC theirs", "AUC lead on theirs"]
    assert [line[4] for line in short] == [line[4] for line in lines]
