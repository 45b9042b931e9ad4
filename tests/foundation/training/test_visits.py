"""Second visits: which rows come again, with which labels, and that no score knows a label before it is ripe."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from foundation.data.batch import History, RequestBatch
from foundation.data.prepare import prepare
from foundation.data.reader import Reader
from foundation.data.selection import keep_rows
from foundation.data.store import Store
from foundation.parallel.world import joined_world
from foundation.soft_labels import read_soft_labels
from foundation.training import prior
from foundation.training.foundation_model import train_foundation
from foundation.training.visits import Visits
from gemcut.demo_data.synthetic import make_data

CLICK, LONG_VIEW, CONVERSION = 0, 1, 2
DAY_US = 86_400_000_000
NUM_REQUESTS, BATCH = 250, 16


@pytest.fixture(scope="module")
def visits(log):
    return visits_of(log, until_us=log.until_us)


@pytest.fixture(scope="module")
def whole(log):
    """Every training request in one batch."""
    with Reader(log.store, log.schema, log.store.select(end=log.until_us), NUM_REQUESTS) as reader:
        (batch,) = reader
    return batch


def visits_of(log, *, until_us, objectives=("click", "long_view", "conversion")):
    positions = log.store.select(end=until_us)
    with (
        joined_world(1) as world,
        Visits(log.store, log.schema, positions, BATCH, objectives=objectives, until_us=until_us, world=world) as made,
    ):
        return list(made)


def times_of(batch):
    return np.repeat(batch.times, np.diff(batch.candidate_offsets))


def test_a_first_visit_has_every_row_once_and_hides_the_late_labels(visits, whole):
    first = [visit for visit in visits if visit.is_first]
    np.testing.assert_array_equal(np.concatenate([visit.batch.row_ids for visit in first]), whole.row_ids)
    labels = np.concatenate([visit.labels for visit in first])
    np.testing.assert_array_equal(labels[:, :CONVERSION], whole.labels[:, :CONVERSION])
    assert np.isnan(labels[:, CONVERSION]).all()
    np.testing.assert_array_equal(np.concatenate([visit.batch.labels for visit in first]), whole.labels)


def test_a_second_visit_has_the_rows_whose_late_label_is_known_at_the_cut_and_only_that_label(visits, whole, log):
    second = [visit for visit in visits if not visit.is_first]
    late = np.isfinite(whole.labels[:, CONVERSION])
    ripe = times_of(whole) + DAY_US <= log.until_us
    assert 0 < (late & ~ripe).sum() < late.sum()
    np.testing.assert_array_equal(np.concatenate([v.batch.row_ids for v in second]), whole.row_ids[late & ripe])
    labels = np.concatenate([visit.labels for visit in second])
    np.testing.assert_array_equal(labels[:, CONVERSION], whole.labels[late & ripe, CONVERSION])
    assert np.isnan(labels[:, :CONVERSION]).all()


def test_no_row_comes_again_before_its_label_is_ripe(visits):
    """The newest request that was scored by then is younger than every label."""
    now, checked = None, 0
    for place, visit in enumerate(visits):
        coming = [later.batch.times[0] for later in visits[place:] if later.is_first]
        if not visit.is_first and visit.batch.num_requests and coming:
            assert visit.batch.times.max() + DAY_US < coming[0]
            checked += 1
        now = visit.batch.times[-1] if visit.is_first else now
    assert checked > 5


def test_second_visits_have_about_as_many_rows_as_first_visits(log, whole):
    """The median, as ripe labels end with the log; conversions of clicks are known for a small part of the rows."""
    sizes = {True: [], False: []}
    for visit in visits_of(conversions_of_clicks(log), until_us=log.until_us):
        sizes[visit.is_first].append(visit.batch.num_candidates)
    kept = np.isfinite(whole.labels[:, CONVERSION]) & (whole.labels[:, CLICK] == 1)
    assert kept.mean() < 1 / 3
    assert 0.5 < np.median(sizes[False]) / np.median(sizes[True]) <= 1.5


def test_of_a_masked_objective_only_rows_whose_condition_is_met_come_again(log, whole):
    second = [v for v in visits_of(conversions_of_clicks(log), until_us=log.until_us) if not v.is_first]
    wanted = np.isfinite(whole.labels[:, CONVERSION]) & (whole.labels[:, CLICK] == 1)
    wanted &= times_of(whole) + DAY_US <= log.until_us
    np.testing.assert_array_equal(np.concatenate([v.batch.row_ids for v in second]), whole.row_ids[wanted])


def conversions_of_clicks(log):
    masked = log.schema.objectives["conversion"].model_copy(update={"given": "click", "conditional": "masked"})
    schema = log.schema.model_copy(update={"objectives": log.schema.objectives | {"conversion": masked}})
    return SimpleNamespace(schema=schema, store=log.store)


def test_objectives_without_delay_need_no_second_visit(log):
    assert all(visit.is_first for visit in visits_of(log, until_us=log.until_us, objectives=("click", "long_view")))


def test_going_on_from_any_visit_gives_the_rest(log, visits):
    positions = log.store.select(end=log.until_us)
    settings = {"objectives": tuple(log.schema.objectives), "until_us": log.until_us}
    with (
        joined_world(1) as world,
        Visits(log.store, log.schema, positions, BATCH, world=world, **settings) as begun,
    ):
        for done, _ in enumerate(begun, start=1):
            with Visits(log.store, log.schema, positions, BATCH, world=world, **settings) as resumed:
                resumed.load_state_dict(begun.state_dict())
                assert len(resumed) == len(visits) - done
                rest = [visit.batch.row_ids.tolist() for visit in resumed]
            assert rest == [visit.batch.row_ids.tolist() for visit in visits[done:]]


@pytest.fixture(scope="module")
def told(tmp_path_factory, log, job_of):
    """Scores of two runs on logs that differ only in conversions that were known from a moment on, and this moment."""
    moment = int(log.store.times[120])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior, "PRIOR_REQUESTS", 8)  # the first log odds know their rows' mean labels
        runs = []
        for flipped in (False, True):
            folder = tmp_path_factory.mktemp("told")
            make_data(folder / "data", num_requests=NUM_REQUESTS, seed=0)
            if flipped:
                flip_conversions(folder / "data" / "impressions.parquet", known_from_us=moment)
            prepare(log.schema, folder, folder / "store", threads=1)
            store = Store.open(folder / "store", log.schema)
            train_foundation(replace(job_of(folder / "run"), store=folder / "store"))
            digests = {"data_fingerprint": store.fingerprint, "schema_digest": log.schema.schema_digest()}
            runs.append(read_soft_labels(folder / "run" / "soft_labels", **digests))
    return SimpleNamespace(moment=moment, runs=runs)


def flip_conversions(path, *, known_from_us):
    table = pq.read_table(path)
    times = table["time"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    flipped = pc.if_else(
        pa.array(times + DAY_US >= known_from_us), pc.subtract(1, table["conversion"]), table["conversion"]
    )
    place = table.column_names.index("conversion")
    pq.write_table(table.set_column(place, "conversion", flipped.cast(table["conversion"].type)), path)


def test_no_score_knows_a_label_before_it_is_ripe(told, whole):
    times = times_of(whole)
    one, other = (run.of_rows(whole.row_ids, np.full(len(times), 2**62)) for run in told.runs)
    before = times <= told.moment
    np.testing.assert_array_equal(one[before], other[before])


def test_later_scores_do_and_so_does_the_trunk_that_all_objectives_share(told, whole):
    late = whole.times[-3 * BATCH]
    rows = times_of(whole) >= late
    one, other = (run.of_rows(whole.row_ids[rows], np.full(rows.sum(), 2**62)) for run in told.runs)
    assert np.abs(one - other)[:, CLICK].min() > 0
    assert np.nanmin(np.abs(one - other)[:, CONVERSION]) > 0


def batch_of_three():
    """Requests with 2, 1 and 3 candidates and 1, 2 and 0 events; a value says whose it is."""
    candidates, events = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1])
    return RequestBatch(
        positions=np.arange(3) + 100,
        times=np.arange(3) + 200,
        users=np.arange(3) + 300,
        surfaces=np.arange(3),
        ids=np.arange(3)[:, None] + 400,
        numbers=np.arange(3, dtype=np.float32)[:, None],
        candidate_offsets=np.array([0, 2, 3, 6]),
        candidate_ids=candidates[:, None],
        candidate_numbers=candidates[:, None].astype(np.float32),
        row_ids=np.arange(6),
        labels=np.arange(6, dtype=np.float32)[:, None],
        histories={"log": History(np.array([0, 1, 3, 3]), events[:, None], events[:, None] + 0.5, events)},
    )


def test_rows_that_are_kept_keep_their_request_and_its_history():
    kept = keep_rows(batch_of_three(), np.array([False, False, True, True, False, True]))
    assert kept.positions.tolist() == [101, 102]
    assert kept.times.tolist() == [201, 202]
    assert kept.users.tolist() == [301, 302]
    assert kept.surfaces.tolist() == [1, 2]
    assert kept.ids.tolist() == [[401], [402]]
    assert kept.numbers.tolist() == [[1], [2]]
    assert kept.candidate_offsets.tolist() == [0, 1, 3]
    assert kept.candidate_ids.tolist() == kept.candidate_numbers.tolist() == [[1], [2], [2]]
    assert kept.row_ids.tolist() == [2, 3, 5]
    assert kept.labels.tolist() == [[2], [3], [5]]
    history = kept.histories["log"]
    assert history.offsets.tolist() == [0, 2, 2]
    assert (history.ids.tolist(), history.times.tolist()) == ([[1], [1]], [1, 1])
    assert history.numbers.tolist() == [[1.5], [1.5]]


def test_no_row_kept_is_an_empty_batch():
    none = keep_rows(batch_of_three(), np.zeros(6, dtype=bool))
    assert (none.num_requests, none.num_candidates) == (0, 0)
    assert none.candidate_offsets.tolist() == none.histories["log"].offsets.tolist() == [0]
