"""What a model begins with is read once."""

from dataclasses import fields

import pytest
import torch

from foundation.data.verified import cache_of
from foundation.training import beginning as module
from foundation.training.beginning import Beginning, beginning

UNTIL = 2**62


@pytest.fixture
def read(log, monkeypatch):
    """An empty cache → the edges that were read from the store since."""
    for file in cache_of(log.store.folder).glob("beginning-*"):
        file.unlink()
    read, real = [], module.number_edges
    monkeypatch.setattr(module, "number_edges", lambda *about: read.append(real(*about)) or read[-1])
    return read


def same(one, other):
    return all(
        getattr(one, field.name).dtype == getattr(other, field.name).dtype
        and torch.equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(Beginning)
    )


def test_it_is_read_once_and_kept_to_the_bit(log, read):
    first, second = (beginning(log.store, log.schema, log.store.select(), UNTIL) for _ in range(2))
    assert len(read) == 1
    assert same(first, second)


def test_of_other_requests_rules_or_times_it_is_another(log, read):
    positions = log.store.select()
    beginning(log.store, log.schema, positions, UNTIL)
    beginning(log.store, log.schema, positions[1:], UNTIL)
    beginning(log.store, log.schema, positions, UNTIL - 1)
    larger = log.schema.tables["item"].model_copy(update={"buckets": 7})
    schema = log.schema.model_copy(update={"tables": log.schema.tables | {"item": larger}})
    beginning(log.store, schema, positions, UNTIL)
    assert len(read) == 4


@pytest.mark.parametrize(
    "harm", [lambda content: content[:-3], lambda content: content[:-1] + bytes([content[-1] ^ 1])]
)
def test_one_that_was_kept_and_is_not_whole_is_read_again(log, read, harm):
    positions = log.store.select()
    fresh = beginning(log.store, log.schema, positions, UNTIL)
    (path,) = cache_of(log.store.folder).glob("beginning-*")
    path.write_bytes(harm(path.read_bytes()))
    assert same(beginning(log.store, log.schema, positions, UNTIL), fresh)
    assert len(read) == 2


def test_few_are_kept(log, read, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 2)
    for start in range(4):
        beginning(log.store, log.schema, log.store.select()[start:], UNTIL)
    assert len(list(cache_of(log.store.folder).glob("beginning-*"))) == 2
