"""A student whose objective is conditional, on a log that kept some of the negatives: training, bundle, evaluation."""

from dataclasses import replace

import numpy as np
import pytest

from eval.predictions import load_predictions
from serving.bundle import load_bundle
from transfer.distill import PREDICTIONS_FILE, train_student
from transfer.export import ExportJob, export
from transfer.sampling import with_odds
from transfer.serve_log import served_predictions

KEPT = 0.25
EXACT = 1e-6


@pytest.fixture(scope="module", params=["product", "masked"])
def job(request, tiny_teacher, tmp_path_factory):
    """Trained alone: the teacher knows nothing of this condition."""
    space = tiny_teacher.space(
        "objectives.conversion.given=click",
        f"objectives.conversion.conditional={request.param}",
        f"objectives.conversion.negatives_kept={KEPT}",
        "placements.search_conversion.transfer.soft_labels=null",
    )
    job = replace(space.student_job("search_conversion", 0, "student"), folder=tmp_path_factory.mktemp("student"))
    train_student(job)
    return job


@pytest.fixture(scope="module")
def trained(job):
    return load_predictions(job.folder / PREDICTIONS_FILE)


@pytest.fixture(scope="module")
def bundle(job, tmp_path_factory):
    return export(ExportJob(job, "tiny", "0" * 64, tmp_path_factory.mktemp("bundles")))


def is_product(job):
    return job.schema.objectives["conversion"].conditional == "product"


def test_a_product_is_never_likelier_than_what_it_is_given(job, trained):
    above = trained.probabilities["conversion"] > trained.probabilities["click"]
    assert not (is_product(job) and above.any())


def test_rows_without_the_condition_are_judged_for_a_product_only(job, trained):
    unmet = trained.labels["click"] != 1
    assert np.isnan(trained.labels["conversion"][unmet]).all() != is_product(job)


def test_parity_is_with_the_corrected_probabilities(bundle):
    errors = load_bundle(bundle).manifest.parity.largest_error
    assert max(errors.values()) < EXACT


def test_a_bundle_scores_as_if_the_log_had_kept_every_row(job, trained, bundle):
    """Export compared it with this on logged requests; here it is compared on all, by the evaluation's way back."""
    said = served_predictions(bundle, job)
    np.testing.assert_array_equal(said.row_id, trained.row_id)
    for objective in job.placement.objectives:
        np.testing.assert_allclose(said.probabilities[objective], trained.probabilities[objective], rtol=0, atol=EXACT)


def test_odds_fall_by_the_share_that_was_kept():
    """A log of 100 rows, 20 of label 1, of which a quarter of the others are left."""
    among_kept = 20 / (20 + KEPT * 80)
    assert with_odds(np.array([among_kept]), KEPT) == pytest.approx(0.2, abs=1e-15)
    assert with_odds(np.array([0.2]), 1 / KEPT) == pytest.approx(among_kept, abs=1e-15)
