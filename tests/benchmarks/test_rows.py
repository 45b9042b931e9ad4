"""Flat rows are the reader's, row by row; what is settled at a time is what was known then."""

import numpy as np
import pytest

from benchmarks.opened import opened
from benchmarks.rows import predictions_from
from foundation.data.reader import Reader

DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def project(tiny_teacher):
    return opened(tiny_teacher.path)


def test_each_row_has_its_request_s_values_and_its_own(project):
    schema, rows = project.loaded.project, project.rows
    with Reader(project.store, schema, project.store.select(), 7) as reader:
        row = 0
        for batch in reader:
            for request in range(batch.num_requests):
                for candidate in range(*batch.candidate_offsets[request : request + 2]):
                    own = [*batch.ids[request], *batch.candidate_ids[candidate]]
                    assert rows.ids[row].tolist() == own
                    numbers = [*batch.numbers[request], *batch.candidate_numbers[candidate]]
                    assert rows.numbers[row].tolist() == numbers
                    assert (rows.row_ids[row], rows.users[row]) == (batch.row_ids[candidate], batch.users[request])
                    row += 1
    assert row == rows.num_rows == rows.offsets[-1]
    assert rows.ids.shape[1] == len(rows.id_names) == len(rows.id_tables)
    assert rows.numbers.shape[1] == len(rows.number_names)


def test_an_objective_has_no_label_on_a_surface_without_its_head(project):
    rows = project.rows
    feed = rows.surfaces == rows.schema.surfaces.index("feed")
    assert np.isnan(rows.labels[feed, rows.place("conversion")]).all()
    assert np.isfinite(rows.labels[~feed, rows.place("conversion")]).any()


def test_a_label_is_settled_a_delay_after_its_row_and_never_at_or_after_the_cut(project):
    rows = project.rows
    click, conversion = (rows.settled(name, project.until_us) for name in ("click", "conversion"))
    assert rows.times[click].max() < project.until_us
    assert click.sum() == project.cut
    known = np.isfinite(rows.labels[:, rows.place("conversion")])
    assert np.array_equal(conversion, known & (rows.times <= project.until_us - DAY_US))


def test_predictions_stand_beside_the_labels_of_their_rows(project):
    rows, first = project.rows, project.cut
    chances = np.linspace(0, 1, rows.num_rows - first)
    table = predictions_from(rows, first, {"click": chances}, model_digest="d")
    assert np.array_equal(table.row_id, rows.row_ids[first:])
    assert np.array_equal(table.labels["click"], rows.labels[first:, 0])
    assert (table.time >= project.until_us).all()
    assert np.array_equal(np.unique(table.request), project.store.select(start=project.until_us))


def test_a_masked_objective_has_labels_only_where_its_condition_is_met(tiny_teacher, project):
    masked = ["objectives.conversion.given=click", "objectives.conversion.conditional=masked"]
    rows = opened(tiny_teacher.path, masked).rows
    click, conversion = (project.rows.labels[:, project.rows.place(name)] for name in ("click", "conversion"))
    expected = np.where(click == 1, conversion, np.nan)
    assert np.array_equal(rows.labels[:, rows.place("conversion")], expected, equal_nan=True)
    assert np.isfinite(expected).sum() < np.isfinite(conversion).sum()
