"""A reader's batch of the tiny schema of the model's tests, with jagged histories."""

import numpy as np
import pytest

from foundation.config import ModelConfig
from foundation.data.batch import History, RequestBatch
from foundation.data.schema import Schema, ids_of, numbers_of


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
                "events": {"orders": {"files": "-", "features": [{"kind": "id", "name": "action"}]}},
                "items": {"files": "-", "features": [{"kind": "id", "name": "brand"}]},
            },
        }
    )


@pytest.fixture(scope="session")
def config():
    return ModelConfig(width=8, encoder_events=64, interleaved_layers=1, heads=2, interaction_tokens=3, hidden=16)


@pytest.fixture(scope="session")
def batch_of(schema):
    """(events of each request, candidates of each request) → a batch."""

    def make(lengths, counts, seed=0):
        draw = np.random.default_rng(seed)
        num_requests, num_rows, num_events = len(lengths), sum(counts), sum(lengths)

        def ids(count, features):
            return draw.integers(0, 30, (count, len(ids_of(features))))

        def numbers(count, features):
            return draw.normal(size=(count, len(numbers_of(features)))).astype(np.float32)

        surfaces = draw.integers(0, 2, num_requests)
        request, candidate, event = (
            schema.request_features(),
            schema.candidate_features(),
            schema.event_features("orders"),
        )
        of_request = ids(num_requests, request)
        of_request[:, 1] = 2 + surfaces
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        times = 10**15 - np.concatenate([[], *(np.arange(n, 0, -1) for n in lengths)]).astype(np.int64) * 10**9
        return RequestBatch(
            positions=np.arange(num_requests),
            times=np.full(num_requests, 10**15),
            users=draw.integers(0, 9, num_requests),
            surfaces=surfaces,
            ids=of_request,
            numbers=numbers(num_requests, request),
            candidate_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            candidate_ids=ids(num_rows, candidate),
            candidate_numbers=numbers(num_rows, candidate),
            row_ids=np.arange(num_rows),
            labels=draw.integers(0, 2, (num_rows, 2)).astype(np.float32),
            histories={"orders": History(starts, ids(num_events, event), numbers(num_events, event), times)},
        )

    return make
