"""Where heads and bins start."""

import numpy as np
import pytest
import torch

from foundation.data.reader import Reader
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.numbers import NUM_BINS
from foundation.training.prior import first_log_odds, number_edges


def test_the_log_odds_are_those_of_the_first_rows_with_one_row_of_each_label_more(log):
    positions = log.store.select()[:5]
    found = first_log_odds(log.store, log.schema, positions, until_us=2**62)
    labels = rows_of(log, positions)
    for place in range(labels.shape[1]):
        positives, negatives = 1 + (labels[:, place] == 1).sum(), 1 + (labels[:, place] == 0).sum()
        assert found[place] == pytest.approx(np.log(positives / negatives), rel=1e-6)


def test_no_rows_say_one_half(log):
    none = first_log_odds(log.store, log.schema, log.store.select()[:0], until_us=2**62)
    assert none.tolist() == [0.0] * len(log.schema.objectives)


def test_heads_begin_at_their_objectives_log_odds(log):
    log_odds = torch.arange(1.0, 1 + len(log.schema.objectives))
    heads = SurfaceObjectiveHeads(log.schema, 4)
    heads.start_at(log_odds)
    logits = heads(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))[0]
    exists = torch.from_numpy(log.schema.head_exists()[0])
    torch.testing.assert_close(logits[exists], log_odds[exists])


def test_the_log_odds_of_a_product_are_those_given_the_other_if_the_model_has_it(log):
    place, given = (list(log.schema.objectives).index(name) for name in ("long_view", "click"))
    chained = log.schema.objectives["long_view"].model_copy(update={"given": "click"})
    schema = log.schema.model_copy(update={"objectives": log.schema.objectives | {"long_view": chained}})
    positions = log.store.select()
    labels = rows_of(log, positions)
    for names, rows in [(None, labels[labels[:, given] == 1]), (("long_view",), labels)]:
        found = first_log_odds(log.store, schema, positions, 2**62, objectives=names)
        positives, negatives = 1 + (rows[:, place] == 1).sum(), 1 + (rows[:, place] == 0).sum()
        assert found[place] == pytest.approx(np.log(positives / negatives), rel=1e-6)


def test_edges_are_quantiles_of_all_requests_numbers_where_there_are_few(log):
    positions = log.store.select()
    found = number_edges(log.store, log.schema, positions)
    with Reader(log.store, log.schema, positions, len(positions)) as reader:
        (batch,) = reader
    for edges, numbers in zip(found, (batch.numbers, batch.candidate_numbers), strict=True):
        assert edges.shape == (numbers.shape[1], NUM_BINS + 1)
        for feature, column in enumerate(numbers.T.astype(np.float64)):
            ordered = np.sort(column)
            for place, edge in enumerate(edges[feature].tolist()):
                at = place / NUM_BINS * (len(ordered) - 1)
                low, share = int(at), at % 1
                high = min(low + 1, len(ordered) - 1)
                assert edge == pytest.approx(ordered[low] + share * (ordered[high] - ordered[low]), abs=1e-12)


def test_no_requests_have_edges_of_zeros(log):
    for edges in number_edges(log.store, log.schema, log.store.select()[:0]):
        assert edges.shape[1] == NUM_BINS + 1
        assert not edges.any()


def rows_of(log, positions):
    with Reader(log.store, log.schema, positions, 2) as reader:
        return np.concatenate([batch.labels for batch in reader])
