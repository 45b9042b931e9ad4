from datetime import timedelta
from types import SimpleNamespace

import numpy as np

from foundation.data.schema import Objective, Schema
from foundation.training.labels import counted_labels, label_delays, settled_labels

UNTIL = 1_700_000_000_000_000
HOUR = 3_600_000_000


def settled(times, counts, labels):
    """Two objectives: one known at once, one an hour later."""
    objectives = {"click": Objective(), "buy": Objective(delay=timedelta(hours=1))}
    batch = SimpleNamespace(
        times=np.array(times),
        candidate_offsets=np.cumsum([0, *counts]),
        labels=np.array(labels, dtype=np.float32),
    )
    return settled_labels(batch, Schema.model_construct(objectives=objectives), UNTIL)


def test_a_label_that_settles_at_the_cut_is_kept_and_one_microsecond_later_is_not():
    labels = settled([UNTIL - HOUR, UNTIL - HOUR + 1], [1, 1], [[1, 1], [1, 1]])
    np.testing.assert_array_equal(labels, [[1, 1], [1, np.nan]])


def test_each_candidate_has_the_time_of_its_request():
    labels = settled([UNTIL - 2 * HOUR, UNTIL - 1], [2, 3], [[0, 1]] * 5)
    np.testing.assert_array_equal(labels, [[0, 1], [0, 1], [0, np.nan], [0, np.nan], [0, np.nan]])


def test_unknown_stays_unknown_and_the_batch_stays_as_it_was():
    given = np.array([[np.nan, 0]], dtype=np.float32)
    labels = settled([UNTIL - HOUR + 1], [1], given)
    assert np.isnan(labels).all()
    assert labels.dtype == np.float32
    np.testing.assert_array_equal(given, [[np.nan, 0]])


def conditional(kind, delay=timedelta(0)):
    given = Objective(delay=timedelta(hours=2))
    return Schema.model_construct(
        objectives={"many": Objective(given="buy", conditional=kind, delay=delay), "buy": given}
    )


def counted(schema):
    batch = SimpleNamespace(labels=np.array([[1, 1], [0, 1], [0, 0], [1, np.nan]], dtype=np.float32))
    return counted_labels(batch, schema)


def test_a_masked_objective_counts_where_its_condition_is_met_and_is_known_with_it():
    np.testing.assert_array_equal(counted(conditional("masked")), [[1, 1], [0, 1], [np.nan, 0], [np.nan, np.nan]])
    assert label_delays(conditional("masked")).tolist() == [2 * HOUR, 2 * HOUR]
    assert label_delays(conditional("masked", timedelta(hours=3))).tolist() == [3 * HOUR, 2 * HOUR]


def test_a_product_counts_everywhere_and_waits_for_nothing_else():
    np.testing.assert_array_equal(counted(conditional("product")), [[1, 1], [0, 1], [0, 0], [1, np.nan]])
    assert label_delays(conditional("product")).tolist() == [0, 2 * HOUR]
