"""Where heads start."""

import numpy as np
import pytest
import torch

from foundation.data.verified import cache_of
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.training import prior
from foundation.training.prior import first_log_odds, number_sample


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


@pytest.fixture
def read(log, monkeypatch):
    """An empty cache → the samples that were read from the store since."""
    for file in cache_of(log.store.folder).glob("numbers-*"):
        file.unlink()
    read, real = [], prior._read_sample
    monkeypatch.setattr(prior, "_read_sample", lambda *about: read.append(real(*about)) or read[-1])
    return read


def test_a_sample_is_read_once_and_kept_to_the_bit(log, read):
    positions = log.store.select()
    first, second = (number_sample(log.store, log.schema, positions) for _ in range(2))
    assert len(read) == 1
    for fresh, kept in zip(first, second, strict=True):
        assert kept.dtype == fresh.dtype
        assert kept.numpy().tobytes() == fresh.numpy().tobytes()
        assert kept.shape == fresh.shape


def test_a_sample_of_other_requests_or_rules_or_another_store_is_another(log, read):
    positions = log.store.select()
    number_sample(log.store, log.schema, positions)
    number_sample(log.store, log.schema, positions[1:])
    larger = log.schema.tables["item"].model_copy(update={"buckets": 7})
    number_sample(log.store, log.schema.model_copy(update={"tables": log.schema.tables | {"item": larger}}), positions)
    assert len(read) == 3


@pytest.mark.parametrize(
    "harm", [lambda content: content[:-3], lambda content: content[:-1] + bytes([content[-1] ^ 1])]
)
def test_a_kept_sample_that_is_not_whole_is_read_again(log, read, harm):
    positions = log.store.select()
    fresh = number_sample(log.store, log.schema, positions)
    (path,) = cache_of(log.store.folder).glob("numbers-*")
    path.write_bytes(harm(path.read_bytes()))
    again = number_sample(log.store, log.schema, positions)
    assert len(read) == 2
    assert all(torch.equal(one, other) for one, other in zip(fresh, again, strict=True))


def test_few_samples_are_kept(log, read, monkeypatch):
    monkeypatch.setattr(prior, "KEPT_SAMPLES", 2)
    for start in range(4):
        number_sample(log.store, log.schema, log.store.select()[start:])
    assert len(list(cache_of(log.store.folder).glob("numbers-*"))) == 2


def rows_of(log, positions):
    from foundation.data.reader import Reader

    with Reader(log.store, log.schema, positions, 2) as reader:
        return np.concatenate([batch.labels for batch in reader])
