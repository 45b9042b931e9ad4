"""A log of moderate size, made once, with small row groups so that batches cross them."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foundation.data import parts
from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from foundation.data.store import Store

NUM_REQUESTS, NUM_USERS, NUM_ITEMS, NUM_EVENTS = 700, 40, 60, 3000


def schema():
    return Schema.model_validate(
        {
            "tables": {
                "user": {"buckets": 50},
                "item": {"buckets": 70},
                "brand": {"type": "string", "buckets": 20},
                "shop": {"type": "string", "values": ["north", "south"]},
            },
            "surfaces": ["home", "search", "cart"],
            "objectives": {"click": {}, "buy": {}},
            "data": {
                "impressions": {
                    "files": "impressions*.parquet",
                    "context": [{"kind": "id", "name": "shop"}],
                    "candidate": [{"kind": "number", "name": "price"}],
                },
                "events": {
                    "views": {"files": "views.parquet", "unit": "s", "limit": 12},
                    "orders": {
                        "files": "orders.parquet",
                        "limit": 5,
                        "features": [{"kind": "id", "name": "shop"}, {"kind": "number", "name": "quantity"}],
                    },
                },
                "items": {"files": "items.parquet", "features": [{"kind": "id", "name": "brand"}]},
            },
        }
    )


def write_logs(folder, seed=0):
    draw = np.random.default_rng(seed)
    start = 1_600_000_000_000_000
    sizes = draw.integers(1, 9, NUM_REQUESTS)
    request = np.repeat(draw.permutation(NUM_REQUESTS), sizes)
    columns = {
        "request_id": request,
        "user_id": draw.integers(0, NUM_USERS, NUM_REQUESTS)[request],
        "time": pa.array(start + draw.integers(0, 300, NUM_REQUESTS)[request] * 1_000_000, pa.timestamp("us", "UTC")),
        "surface": np.array(["home", "search", "cart"])[draw.integers(0, 3, NUM_REQUESTS)[request]],
        "item_id": np.concatenate([draw.permutation(NUM_ITEMS)[:size] for size in sizes]),
        "shop": np.array(["north", "south"])[draw.integers(0, 2, NUM_REQUESTS)[request]],
        "price": draw.random(len(request)),
        "click": draw.integers(0, 2, len(request)).astype(np.int8),
        "buy": pa.array(draw.integers(0, 2, len(request)), mask=draw.random(len(request)) < 0.3),
    }
    shown = pa.table(columns)
    half = len(request) // 2
    pq.write_table(shown.slice(0, half), folder / "impressions-0.parquet")
    pq.write_table(shown.slice(half), folder / "impressions-1.parquet")
    who, what = draw.integers(0, NUM_USERS, (2, NUM_EVENTS)), draw.integers(0, NUM_ITEMS, (2, NUM_EVENTS))
    when = start // 1_000_000 + draw.integers(0, 300, (2, NUM_EVENTS))
    pq.write_table(pa.table({"user_id": who[0], "time": when[0], "item_id": what[0]}), folder / "views.parquet")
    orders = {
        "user_id": who[1],
        "time": pa.array(when[1], pa.timestamp("s")),
        "item_id": what[1],
        "shop": np.array(["north", "south", "west"])[draw.integers(0, 3, NUM_EVENTS)],
        "quantity": draw.integers(1, 5, NUM_EVENTS),
    }
    pq.write_table(pa.table(orders), folder / "orders.parquet")
    brands = [None if item % 7 == 0 else f"brand {item % 5}" for item in range(NUM_ITEMS)]
    pq.write_table(pa.table({"item_id": range(NUM_ITEMS), "brand": brands}), folder / "items.parquet")


@contextmanager
def few_requests_a_row_group():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "REQUESTS_A_ROW_GROUP", 64)
        patch.setattr(parts, "ROW_GROUPS_A_PART", 3)
        yield


@pytest.fixture(autouse=True)
def small_row_groups():
    """For one test: left on for a session it would change the stores that tests of other folders make."""
    with few_requests_a_row_group():
        yield


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """The tables, their schema, and the store made of them; not to be changed."""
    root = tmp_path_factory.mktemp("log")
    write_logs(root)
    with few_requests_a_row_group():
        prepare(schema(), root, root / "store")
    return SimpleNamespace(
        root=root, schema=schema(), folder=root / "store", store=Store.open(root / "store", schema())
    )


@pytest.fixture
def tables(tmp_path):
    """The same tables for a test that changes them."""
    write_logs(tmp_path)
    return SimpleNamespace(root=tmp_path, schema=schema(), folder=tmp_path / "store")
