"""What is true in the synthetic logs: who likes what, and what that does to each label's probability.

A user's interests are a vector that drifts over the log's time; items lie near their category in the same space. What a
user did before draws on the same interests, so a model learns them from the history and from nothing else.

    affinity  = interests(t) . item                         match = log(1 + same category among the newest 20 events)
    click     = sigmoid(base + a affinity + m match + p price + appeal + hour + device - drift t)
    long_view = click * sigmoid(-0.4 + 0.8 affinity)        conversion = click * sigmoid(-3.2 + 0.6 affinity + ...)

The factors of `click` depend on the surface. Shape letters: U users, I items, K categories, D latent width, N rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemcut.demo_data.draws import FloatArray, Int64Array, draw_in_ranges, weight_edges

HORIZON_MS = 60 * 24 * 3600 * 1000
LATE = 0.8  # from this share of the horizon on, some users and items are new

NUM_CATEGORIES = 40
NUM_BRANDS = 150
NUM_SEGMENTS = 6
MATCH_EVENTS = 20
_WIDTH = 8
_EMPTY_SHARE = 0.05
_MEDIAN_EVENTS, _SIGMA_EVENTS, _MOST_EVENTS = 40, 1.4, 5000


@dataclass(frozen=True, slots=True)
class SurfaceEffects:
    """What the click logit is made of on one surface."""

    share: float
    base: float
    affinity: float
    match: float
    price: float
    converts: bool


SURFACES = {
    "feed": SurfaceEffects(share=0.5, base=-2.9, affinity=0.9, match=0.7, price=0.0, converts=False),
    "search": SurfaceEffects(share=0.3, base=-2.3, affinity=1.1, match=0.3, price=-0.5, converts=True),
    "related": SurfaceEffects(share=0.2, base=-2.6, affinity=0.7, match=0.9, price=-0.2, converts=True),
}
DEVICES = {"desktop": 0.2, "mobile": 0.0, "tablet": -0.2}


@dataclass(frozen=True, slots=True)
class World:
    """Users and items with what no log says of them.

    Attributes:
        interests: [2, U, D] at the start and at the end of the horizon.
        segments: [U] int64.
        arrivals_ms: [U] int64, when a user is first there.
        activity: [U] float64, relative rate of requests.
        history_lengths: [U] int64, events over the whole horizon.
        centres: [K, D] of the categories.
        items: [I, D].
        categories: [I] int64.
        brands: [I] int64.
        releases_ms: [I] int64, when an item is first on offer.
        popularity: [I] float64, relative rate of being shown or found.
        appeal: [I] float64, of the item and its brand, in logits.
        prices: [I] float64, in currency units.
    """

    interests: FloatArray
    segments: Int64Array
    arrivals_ms: Int64Array
    activity: FloatArray
    history_lengths: Int64Array
    centres: FloatArray
    items: FloatArray
    categories: Int64Array
    brands: Int64Array
    releases_ms: Int64Array
    popularity: FloatArray
    appeal: FloatArray
    prices: FloatArray

    def interests_at(self, users: Int64Array, times_ms: Int64Array) -> FloatArray:
        """[N, D] interests of users at times: a straight line from the start's to the end's."""
        share = (times_ms / HORIZON_MS)[:, None]
        return (1 - share) * self.interests[0, users] + share * self.interests[1, users]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Draws by weight among the members of a group that are there at a time. Every group has one from the start."""

    order: Int64Array
    keys: Int64Array
    edges: FloatArray

    @classmethod
    def of(cls, starts_ms: Int64Array, weights: FloatArray, groups: Int64Array) -> Arrivals:
        """Members with their start, weight and group, [M] each."""
        keys = groups * HORIZON_MS + starts_ms
        order = np.argsort(keys, kind="stable")
        return cls(order=order, keys=keys[order], edges=weight_edges(weights[order]))

    def draw(self, rng: np.random.Generator, groups: Int64Array, times_ms: Int64Array) -> Int64Array:
        """[N] members, for each group and time; times in [0, HORIZON_MS)."""
        first = np.searchsorted(self.keys, groups * HORIZON_MS, side="left")
        end = np.searchsorted(self.keys, groups * HORIZON_MS + times_ms, side="right")
        return self.order[draw_in_ranges(self.edges, rng.random(len(groups)), first=first, end=end)]


def make_world(rng: np.random.Generator, *, num_users: int, num_items: int) -> World:
    """Draw the users and items; `num_items` is at least twice the number of categories."""
    segments = rng.integers(NUM_SEGMENTS, size=num_users)
    start = 0.7 * rng.normal(size=(NUM_SEGMENTS, _WIDTH))[segments] + 0.7 * rng.normal(size=(num_users, _WIDTH))
    end = 0.75 * start + 0.66 * rng.normal(size=start.shape)
    centres = rng.normal(size=(NUM_CATEGORIES, _WIDTH)) / np.sqrt(_WIDTH)
    categories = np.arange(num_items) % NUM_CATEGORIES
    brands = np.minimum(rng.geometric(0.03, size=num_items) - 1, NUM_BRANDS - 1)
    brand_appeal = rng.normal(scale=0.3, size=NUM_BRANDS)
    typical_price = rng.normal(loc=3.0, scale=0.6, size=NUM_CATEGORIES)
    return World(
        interests=np.stack([start, end]),
        segments=segments,
        arrivals_ms=_starts(rng, num_users),
        activity=rng.lognormal(sigma=0.8, size=num_users),
        history_lengths=rng.permutation(_history_lengths(num_users)),
        centres=centres,
        items=centres[categories] + rng.normal(scale=0.15, size=(num_items, _WIDTH)),
        categories=categories,
        brands=brands,
        releases_ms=_starts(rng, num_items),
        popularity=1.0 / rng.permutation(np.arange(1, num_items + 1)) ** 0.7,
        appeal=brand_appeal[brands] + rng.normal(scale=0.4, size=num_items),
        prices=np.exp(typical_price[categories] + rng.normal(scale=0.4, size=num_items)).round(2),
    )


def _starts(rng: np.random.Generator, count: int) -> Int64Array:
    """When users or items appear: 70 % at the start (the first ones), 15 % until `LATE`, 15 % after it."""
    at_start, late = int(0.7 * count), int(0.15 * count)
    starts = np.zeros(count, dtype=np.int64)
    starts[at_start : count - late] = rng.integers(int(LATE * HORIZON_MS), size=count - late - at_start)
    starts[count - late :] = rng.integers(int(LATE * HORIZON_MS), HORIZON_MS, size=late)
    return starts


def _history_lengths(num_users: int) -> Int64Array:
    """Log-normal quantiles, so that every size of world has its very long histories; the shortest are empty."""
    normal = np.sort(np.random.default_rng(0).normal(size=200_001))
    quantiles = np.quantile(normal, (np.arange(num_users) + 0.5) / num_users)
    lengths = (_MEDIAN_EVENTS * np.exp(_SIGMA_EVENTS * quantiles)).astype(np.int64)
    lengths[: int(np.ceil(_EMPTY_SHARE * num_users))] = 0
    return np.minimum(lengths, _MOST_EVENTS)


@dataclass(frozen=True, slots=True)
class Rows:
    """Impression rows, [N] each, by number of user, item, surface and device.

    Attributes:
        match: events of the item's category among the user's newest 20 before the time.
    """

    users: Int64Array
    times_ms: Int64Array
    surfaces: Int64Array
    devices: Int64Array
    items: Int64Array
    match: Int64Array


def true_probabilities(world: World, rows: Rows) -> dict[str, FloatArray]:
    """[N] probability that each label is 1; NaN on surfaces where the objective does not exist."""
    effects = list(SURFACES.values())
    base, by_affinity, by_match, by_price = (
        np.array([getattr(effect, name) for effect in effects])[rows.surfaces]
        for name in ("base", "affinity", "match", "price")
    )
    affinity = np.einsum("nd,nd->n", world.interests_at(rows.users, rows.times_ms), world.items[rows.items])
    match = np.log1p(rows.match)
    price = (np.log(world.prices[rows.items]) - 3.0) / 0.7
    hour = 0.3 * np.sin(2 * np.pi * hours_of(rows.times_ms) / 24)
    device = np.array(list(DEVICES.values()))[rows.devices]
    drift = 0.3 * rows.times_ms / HORIZON_MS
    click = _sigmoid(
        base
        + by_affinity * affinity
        + by_match * match
        + by_price * price
        + world.appeal[rows.items]
        + hour
        + device
        - drift
    )
    converts = np.array([effect.converts for effect in effects])[rows.surfaces]
    conversion = click * _sigmoid(-3.2 + 0.6 * affinity + 0.4 * match - 0.4 * price)
    return {
        "click": click,
        "long_view": click * _sigmoid(-0.4 + 0.8 * affinity),
        "conversion": np.where(converts, conversion, np.nan),
    }


def hours_of(times_ms: Int64Array) -> Int64Array:
    """Hour of the day, 0 to 23."""
    return times_ms // 3_600_000 % 24


def _sigmoid(logits: NDArray[np.float64]) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-logits))
