"""Synthetic ranking logs with known true probabilities, for tests and for work with no network.

Three surfaces; clicks, long views and rare conversions (on two surfaces); histories from none to thousands of events;
users and items that appear late; prices that are not always known; interests that drift. `synthetic_world.py` says
what is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gemcut.demo_data.draws import FloatArray, Int64Array
from gemcut.demo_data.synthetic_world import (
    DEVICES,
    HORIZON_MS,
    MATCH_EVENTS,
    SURFACES,
    Arrivals,
    Rows,
    World,
    hours_of,
    make_world,
    true_probabilities,
)
from gemcut.demo_data.tables import write_tables

NUM_REQUESTS = 60_000
START_MS = 1_704_067_200_000  # 2024-01-01 UTC
SETTLED_MS = 24 * 3600 * 1000  # a conversion is known a day after the request
_FIRST_REQUEST, _FIRST_USER, _FIRST_ITEM = 1_000_000_000, 500_000, 70_000
_MEAN_OTHER_CANDIDATES = 9.5
_ACTIONS = ("view", "cart", "buy")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Events:
    """What users did, sorted by user and time, [T] each, by number of user and item."""

    users: Int64Array
    times_ms: Int64Array
    items: Int64Array


def make_data(
    target: Path, progress: Progress | None = None, *, num_requests: int = NUM_REQUESTS, seed: int = 0
) -> None:
    """Write impressions, events, items, users and truth (parquet) into `target`, which is made if it is not there.

    `truth` has a row an impression: request, item, and the probability with which each of its labels was drawn.

    Args:
        target: folder for the five files; files of the same names are replaced, all or none.
        progress: is told, in a few words, what begins.
        num_requests: at least 1; about 10 rows each, and a user for every 15.
        seed: same seed, same numbers of requests, same bytes.
    """
    tell = progress or (lambda _: None)
    rng = np.random.default_rng(seed)
    tell("users and items")
    world = make_world(rng, num_users=max(300, num_requests // 15), num_items=max(400, num_requests // 15))
    tell("what users did before")
    events = make_events(world, rng)
    tell("requests, candidates, labels")
    requests, rows = make_rows(world, events, rng, num_requests=num_requests)
    truth = true_probabilities(world, rows)
    labels = _draw_labels(truth, rng)
    ids = _Ids(users=_shuffled(rng, len(world.segments)), items=_shuffled(rng, len(world.categories)))
    tables = {
        "impressions": _impressions(rows, requests, labels, ids=ids),
        "events": _events(world, events, ids, rng=rng),
        "items": _items(world, ids, rng),
        "users": _users(world, ids, rng),
        "truth": _truth(rows, requests, truth, ids=ids),
    }
    tell("writing")
    write_tables(target, tables)


def make_events(world: World, rng: np.random.Generator) -> Events:
    """Each user's events: at times after their arrival, in categories of their interests at the time."""
    users = np.repeat(np.arange(len(world.arrivals_ms)), world.history_lengths)
    arrivals = world.arrivals_ms[users]
    times = arrivals + (rng.random(len(users)) * (HORIZON_MS - arrivals)).astype(np.int64)
    order = np.lexsort((times, users))
    users, times = users[order], times[order]
    logits = 1.5 * world.interests_at(users, times) @ world.centres.T
    # The largest of logit + Gumbel noise is a draw from the softmax.
    categories = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    on_offer = Arrivals.of(world.releases_ms, world.popularity, world.categories)
    return Events(users=users, times_ms=times, items=on_offer.draw(rng, categories, times))


def make_rows(world: World, events: Events, rng: np.random.Generator, *, num_requests: int) -> tuple[Int64Array, Rows]:
    """Requests in time order with their candidates: the request's number of each row, and the rows."""
    times = np.sort(rng.integers(HORIZON_MS, size=num_requests))
    nobody = np.zeros(num_requests, dtype=np.int64)
    users = Arrivals.of(world.arrivals_ms, world.activity, np.zeros_like(world.arrivals_ms)).draw(rng, nobody, times)
    surfaces = rng.choice(len(SURFACES), size=num_requests, p=[effects.share for effects in SURFACES.values()])
    devices = rng.choice(len(DEVICES), size=num_requests, p=[0.35, 0.55, 0.1])

    drawn = np.repeat(np.arange(num_requests), 1 + rng.poisson(_MEAN_OTHER_CANDIDATES, size=num_requests))
    on_offer = Arrivals.of(world.releases_ms, world.popularity, np.zeros_like(world.releases_ms))
    items = on_offer.draw(rng, np.zeros_like(drawn), times[drawn])
    pairs = np.unique(np.stack([drawn, items]), axis=1)  # an item stands once in a request
    requests, items = pairs[0], pairs[1]
    return requests, Rows(
        users=users[requests],
        times_ms=times[requests],
        surfaces=surfaces[requests],
        devices=devices[requests],
        items=items,
        match=count_matches(events, world.categories, users=users[requests], times_ms=times[requests], items=items),
    )


def count_matches(
    events: Events, categories: Int64Array, *, users: Int64Array, times_ms: Int64Array, items: Int64Array
) -> Int64Array:
    """[N] events of the item's category among the user's newest 20 strictly before the time."""
    keys = events.users * HORIZON_MS + events.times_ms
    first = np.searchsorted(keys, users * HORIZON_MS, side="left")
    end = np.searchsorted(keys, users * HORIZON_MS + times_ms, side="left")
    happened = categories[events.items]
    matches = np.zeros(len(users), dtype=np.int64)
    for back in range(1, MATCH_EVENTS + 1):
        there = end - back >= first
        matches += there & (happened[np.where(there, end - back, 0)] == categories[items])
    return matches


def _draw_labels(truth: dict[str, FloatArray], rng: np.random.Generator) -> dict[str, NDArray[np.bool_]]:
    """Labels with exactly the true probabilities; a long view or a conversion happens only after a click."""
    click = rng.random(len(truth["click"])) < truth["click"]
    after = {name: rng.random(len(click)) < truth[name] / truth["click"] for name in ("long_view", "conversion")}
    return {"click": click, **{name: click & drawn for name, drawn in after.items()}}


@dataclass(frozen=True, slots=True)
class _Ids:
    """The number a user or an item has in the logs, which says nothing of when it came."""

    users: Int64Array
    items: Int64Array


def _shuffled(rng: np.random.Generator, count: int) -> Int64Array:
    return rng.permutation(count).astype(np.int64)


def _times(times_ms: Int64Array) -> pa.Array:
    return pa.array(times_ms + START_MS).cast(pa.timestamp("ms"))


def _names(kind: str, numbers: Int64Array) -> pa.Array:
    return pa.array([f"{kind}_{number:02d}" for number in numbers.tolist()])


def _impressions(rows: Rows, requests: Int64Array, labels: dict[str, NDArray[np.bool_]], *, ids: _Ids) -> pa.Table:
    surfaces, devices = np.array(list(SURFACES)), np.array(list(DEVICES))
    converts = np.array([effects.converts for effects in SURFACES.values()])[rows.surfaces]
    unknown = {"conversion": ~converts | (rows.times_ms > HORIZON_MS - SETTLED_MS)}
    return pa.table(
        {
            "request_id": requests + _FIRST_REQUEST,
            "user_id": ids.users[rows.users] + _FIRST_USER,
            "time": _times(rows.times_ms),
            "surface": surfaces[rows.surfaces],
            "item_id": ids.items[rows.items] + _FIRST_ITEM,
            "device": devices[rows.devices],
            "hour": hours_of(rows.times_ms),
            **{name: pa.array(drawn.astype(np.int8), mask=unknown.get(name)) for name, drawn in labels.items()},
        }
    )


def _events(world: World, events: Events, ids: _Ids, *, rng: np.random.Generator) -> pa.Table:
    """In time order; the more an item is liked, the further a user goes with it."""
    affinity = np.einsum("nd,nd->n", world.interests_at(events.users, events.times_ms), world.items[events.items])
    action = np.clip((affinity + rng.logistic(size=len(affinity)) + 1) // 2, 0, len(_ACTIONS) - 1).astype(np.int64)
    dwell = np.exp(2.5 + 0.3 * affinity + rng.normal(scale=0.7, size=len(affinity))).round(1)
    order = np.lexsort((events.users, events.times_ms))
    return pa.table(
        {
            "user_id": ids.users[events.users] + _FIRST_USER,
            "time": _times(events.times_ms),
            "item_id": ids.items[events.items] + _FIRST_ITEM,
            "action": np.array(_ACTIONS)[action],
            "dwell_s": pa.array(dwell, mask=rng.random(len(dwell)) < 0.2),
        }
    ).take(pa.array(order))


def _items(world: World, ids: _Ids, rng: np.random.Generator) -> pa.Table:
    table = pa.table(
        {
            "item_id": ids.items + _FIRST_ITEM,
            "category": _names("category", world.categories),
            "brand": _names("brand", world.brands),
            "price": pa.array(world.prices, mask=rng.random(len(world.prices)) < 0.1),
        }
    )
    return table.sort_by("item_id")


def _users(world: World, ids: _Ids, rng: np.random.Generator) -> pa.Table:
    segments = _names("segment", world.segments).to_numpy(zero_copy_only=False)
    unknown = rng.random(len(segments)) < 0.3
    return pa.table({"user_id": ids.users + _FIRST_USER, "segment": pa.array(segments, mask=unknown)}).sort_by(
        "user_id"
    )


def _truth(rows: Rows, requests: Int64Array, truth: dict[str, FloatArray], *, ids: _Ids) -> pa.Table:
    return pa.table(
        {
            "request_id": requests + _FIRST_REQUEST,
            "item_id": ids.items[rows.items] + _FIRST_ITEM,
            **{name: pa.array(probability, from_pandas=True) for name, probability in truth.items()},
        }
    )
