"""Where heads start."""

import numpy as np
import pytest
import torch

from foundation.model.heads import SurfaceObjectiveHeads
from foundation.training.prior import first_log_odds


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


def rows_of(log, positions):
    from foundation.data.reader import Reader

    with Reader(log.store, log.schema, positions, 2) as reader:
        return np.concatenate([batch.labels for batch in reader])
