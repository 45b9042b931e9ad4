"""A tiny schema with every kind of feature, and batches of requests that a test can take apart and put together."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from foundation.config import ModelConfig
from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.model.inputs import HistoryTensors, RequestTensors
from foundation.parallel.world import joined_world

ROWS = 30  # of every table, at least: 28 buckets, "missing", "out of vocabulary"


@pytest.fixture(scope="session")
def schema():
    return Schema.model_validate(
        {
            "tables": {name: {"buckets": 28} for name in ("user", "item", "brand", "shop", "action")},
            "surfaces": ["home", "search"],
            "objectives": {"click": {}, "buy": {"surfaces": ["search"]}},
            "data": {
                "impressions": {
                    "files": "-",
                    "context": [{"kind": "id", "name": "shop"}, {"kind": "number", "name": "hour"}],
                    "candidate": [{"kind": "number", "name": "price"}],
                },
                "events": {
                    "views": {"files": "-"},
                    "orders": {
                        "files": "-",
                        "features": [{"kind": "id", "name": "action"}, {"kind": "number", "name": "quantity"}],
                    },
                },
                "items": {"files": "-", "features": [{"kind": "id", "name": "brand"}]},
            },
        }
    )


@pytest.fixture(scope="session")
def config():
    return ModelConfig(width=8, encoder_events=6, interleaved_layers=2, heads=2, interaction_tokens=3, hidden=16)


def draw_request(schema, draw, *, lengths, num_candidates):
    """One request of random content, with a history of a given length in each log."""

    def ids(count, features):
        return draw.integers(0, ROWS, (count, len(ids_of(features))))

    def numbers(count, features):
        return draw.normal(size=(count, len(numbers_of(features)))).astype(np.float32)

    surface = int(draw.integers(0, 2))
    of_request = ids(1, schema.request_features())
    of_request[0, 1] = 2 + surface
    return SimpleNamespace(
        surface=surface,
        ids=of_request,
        numbers=numbers(1, schema.request_features()),
        candidate_ids=ids(num_candidates, schema.candidate_features()),
        candidate_numbers=numbers(num_candidates, schema.candidate_features()),
        labels=draw.integers(0, 2, (num_candidates, 2)).astype(np.float32),
        histories={
            log: (
                ids(length, schema.event_features(log)),
                numbers(length, schema.event_features(log)),
                -np.sort(-draw.integers(1, 10**13, length)),
            )
            for log, length in lengths.items()
        },
    )


def batch_of(requests):
    """The requests one after the other, as tensors."""

    def joined(arrays):
        return torch.from_numpy(np.concatenate(list(arrays)))

    def offsets(counts):
        return torch.tensor([0, *counts]).cumsum(0)

    return RequestTensors(
        surfaces=torch.tensor([request.surface for request in requests]),
        ids=joined(request.ids for request in requests),
        numbers=joined(request.numbers for request in requests),
        candidate_offsets=offsets(len(request.candidate_ids) for request in requests),
        candidate_ids=joined(request.candidate_ids for request in requests),
        candidate_numbers=joined(request.candidate_numbers for request in requests),
        labels=joined(request.labels for request in requests),
        histories={
            log: HistoryTensors(
                offsets(len(request.histories[log][2]) for request in requests),
                *(joined(request.histories[log][part] for request in requests) for part in range(3)),
            )
            for log in requests[0].histories
        },
    )


@pytest.fixture(scope="session")
def request_of(schema):
    """(seed, length of each history, candidates) → a request."""

    def make(seed, views, orders, num_candidates=3):
        draw = np.random.default_rng(seed)
        return draw_request(schema, draw, lengths={"views": views, "orders": orders}, num_candidates=num_candidates)

    return make


@pytest.fixture(scope="session")
def batched():
    return batch_of


@pytest.fixture(scope="module")
def world():
    with joined_world(1) as joined:
        yield joined
