"""Statistics of logged requests: DuckDB's, the counter's and those of a reading row by row are the same numbers."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval.artifacts import digests_of
from foundation.data import parts
from foundation.data.prepare import ALREADY, prepare
from foundation.data.raw import raw_requests
from foundation.data.reader import Reader
from foundation.data.schema import Schema, numbers_of
from foundation.data.store import Store, content_digest
from serving.errors import MismatchError
from serving.numbers import encode_numbers
from serving.statistics import HOUR_US, Counter

US = timedelta(microseconds=1)
WINDOWS = [["all"], ["PT0.000003S"], ["PT0.000001S", "PT0.000005S", "all"]]
STATISTICS = {
    "bought_user_item": {"source": "orders", "key": ["user", "item"], "windows": WINDOWS[2]},
    "bought_brand": {"source": "orders", "key": ["brand"], "windows": WINDOWS[1]},
    "bought_surface_shop": {"source": "orders", "key": ["surface", "shop"]},
    "bought_city": {"source": "orders", "key": ["city"], "windows": WINDOWS[2]},
    "shown_item_badge": {
        "source": "impressions",
        "key": ["item", "badge"],
        "objective": "click",
        "windows": WINDOWS[2],
    },
    "shown_user": {"source": "impressions", "key": ["user"], "objective": "buy", "windows": WINDOWS[2]},
    "shown_item_surface": {"source": "impressions", "key": ["item", "surface"], "objective": "buy", "recency": False},
    "shown_shop_city": {"source": "impressions", "key": ["shop", "city"], "windows": WINDOWS[1]},
}


def schema(statistics=STATISTICS, delay="PT0.000002S"):
    return Schema.model_validate_json(
        json.dumps(
            {
                "tables": {
                    "user": {"buckets": 50},
                    "item": {"buckets": 70},
                    "brand": {"type": "string", "buckets": 20},
                    "city": {"type": "string", "buckets": 20},
                    "shop": {"buckets": 9},
                    "badge": {"type": "string", "values": ["new", "sale"]},
                    "event_surface": {"type": "string", "buckets": 9},
                },
                "surfaces": ["home", "cart"],
                "objectives": {"click": {}, "buy": {"delay": delay}},
                "statistics": statistics,
                "data": {
                    "impressions": {
                        "files": "impressions.parquet",
                        "unit": "us",
                        "context": [{"kind": "id", "name": "shop"}],
                        "candidate": [{"kind": "id", "name": "badge"}, {"kind": "number", "name": "price"}],
                    },
                    "events": {
                        "orders": {
                            "files": "orders.parquet",
                            "unit": "us",
                            "features": [
                                {"kind": "id", "name": "shop"},
                                {"kind": "id", "name": "surface", "column": "place", "table": "event_surface"},
                            ],
                        }
                    },
                    "items": {"files": "items.parquet", "features": [{"kind": "id", "name": "brand"}]},
                    "users": {"files": "users.parquet", "features": [{"kind": "id", "name": "city"}]},
                },
            }
        )
    )


ids, shops = st.integers(0, 2), st.sampled_from([None, 1, -1])
times = st.integers(0, 12)
request = st.fixed_dictionaries(
    {
        "user_id": ids,
        "time": times,
        "surface": st.sampled_from(["home", "cart"]),
        "shop": shops,
        "candidates": st.lists(
            st.fixed_dictionaries(
                {
                    "item_id": ids,
                    "badge": st.sampled_from([None, "new", "sale"]),
                    "click": st.sampled_from([None, 0, 1]),
                    "buy": st.sampled_from([None, 0, 1]),
                }
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda row: row["item_id"],
        ),
    }
)
order = st.fixed_dictionaries(
    {
        "user_id": ids,
        "time": times,
        "item_id": ids,
        "shop": shops,
        "place": st.sampled_from(["home", "cart", "shelf", None]),
    }
)
brands = st.fixed_dictionaries({item: st.sampled_from([None, "a", "b"]) for item in (0, 1)})  # item 2 has no row
cities = st.fixed_dictionaries({user: st.sampled_from([None, "x", "y"]) for user in (0, 1)})  # nor has user 2


class World:
    """Logs, written, and the same rows as their features' names have them."""

    def __init__(self, requests, orders, brands, cities):
        self.brands, self.cities = brands, cities
        self.shown = [
            {**{name: value for name, value in head.items() if name != "candidates"}, **row, "request_id": place}
            for place, head in enumerate(requests)
            for row in head["candidates"]
        ]
        self.orders = orders

    def write(self, folder):
        number, text = pa.int64(), pa.string()
        types = dict.fromkeys(("request_id", "user_id", "time", "item_id", "shop", "click", "buy"), number)
        types |= dict.fromkeys(["surface", "badge", "place", "brand", "city"], text)
        tables = {
            "impressions": [row | {"price": 1.0} for row in self.shown],
            "orders": self.orders,
            "items": [{"item_id": item, "brand": brand} for item, brand in self.brands.items()],
            "users": [{"user_id": user, "city": city} for user, city in self.cities.items()],
        }
        for name, rows in tables.items():
            fields = [(column, types.get(column, pa.float64())) for column in rows[0]]
            pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), folder / f"{name}.parquet")

    def features(self, row):
        """A row by the names of features."""
        named = {"user": row["user_id"], "item": row["item_id"], "time": row["time"], "shop": row["shop"]}
        named["surface"] = row["place"] if "place" in row else row["surface"]
        named["brand"], named["city"] = self.brands.get(row["item_id"]), self.cities.get(row["user_id"])
        return named | ({"badge": row["badge"]} if "badge" in row else {})


def brute(world, project, row, statistic, now):
    """One statistic's values by the sentence of its documentation, read row by row."""
    name, declared = statistic
    rows = world.shown if declared.source == "impressions" else world.orders
    key = [world.features(row)[part] for part in declared.key]
    same = [other for other in rows if [world.features(other)[part] for part in declared.key] == key]
    delay = project.objectives[declared.objective].delay // US if declared.objective else 0
    found, labelled = {}, {}
    for window in declared.windows:
        first = -(10**9) if window == "all" else now - window // US
        said = "all" if window == "all" else f"{window // US}us"
        found[f"{name}_count_{said}"] = sum(first <= other["time"] < now for other in same)
        if declared.objective:
            labels = [other[declared.objective] for other in same if first <= other["time"] + delay < now]
            known = [label for label in labels if label is not None]
            labelled[f"{name}_{declared.objective}_{said}"] = sum(known)
            labelled[f"{name}_{declared.objective}_rate_{said}"] = sum(known) / len(known) if known else None
    if declared.recency:
        past = [other["time"] for other in same if other["time"] < now]
        found[f"{name}_recency"] = (now - max(past)) / HOUR_US if past else None
    missing = any(part is None for part in key)
    return {
        value: None if missing or number is None else float(np.float32(number))
        for value, number in (found | labelled).items()
    }


def counted(world, project):
    """A counter that was fed with everything, the future too."""
    counter = Counter(project.statistic_rules())
    for row in world.orders:
        counter.add("orders", world.features(row))
    for row in world.shown:
        counter.add("impressions", world.features(row))
        for objective in ("click", "buy"):
            if row[objective] is not None:
                counter.add_label(objective, world.features(row), row[objective])
    return counter


def replayed(store):
    """Raw values of every row of a store, as a client would send them, each after what tells the row."""
    project = store.schema
    whole = [feature.name for feature in project.request_statistics()]
    own = [feature.name for feature in project.candidate_statistics()]
    for raw in raw_requests(store, np.arange(store.manifest.num_requests), history_limits={"orders": 0}):
        head, columns = raw["request"], raw["candidates"]
        for place, item in enumerate(columns["item"]):
            seen = (head["user"], head["time"], head["surface"], head["shop"], item, columns["badge"][place])
            yield seen, {name: head[name] for name in whole} | {name: columns[name][place] for name in own}


def order_of(row):
    return (row["user_id"], row["time"], row["surface"], row["shop"], row["item_id"], row["badge"])


worlds = st.builds(
    World,
    st.lists(request, min_size=1, max_size=12),
    st.lists(order, min_size=1, max_size=25),
    brands,
    cities,
)


@contextmanager
def cut_into(requests_a_row_group, row_groups_a_part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "REQUESTS_A_ROW_GROUP", requests_a_row_group)
        patch.setattr(parts, "ROW_GROUPS_A_PART", row_groups_a_part)
        yield


@pytest.fixture(autouse=True)
def small_row_groups():
    """Of this file's tests, in place of their folder's."""
    with cut_into(16, 3):
        yield


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds, delay=st.sampled_from(["PT0S", "PT0.000002S"]))
def test_duckdb_the_counter_and_a_reading_of_the_rows_agree_on_every_value(world, delay):
    project = schema(delay=delay)
    with tempfile.TemporaryDirectory() as name, cut_into(3, 2):
        folder = Path(name)
        world.write(folder)
        prepare(project, folder, folder / "store", threads=1, memory="200MB")
        found = list(replayed(Store.open(folder / "store", project)))
    counter = counted(world, project)
    rows = {order_of(row): row for row in world.shown}
    assert len(found) == len(world.shown)
    for seen, values in found:
        row = rows[seen]
        now = row["time"]
        slow: dict[str, float | None] = {}
        for statistic in project.statistics.items():
            slow |= brute(world, project, row, statistic, now)
        assert values == slow
        assert counter.values(world.features(row), now) == slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store of moderate size with statistics, in several parts and row groups."""
    folder = tmp_path_factory.mktemp("statistics")
    draw = np.random.default_rng(3)
    requests = [
        {
            "user_id": int(draw.integers(0, 9)),
            "time": int(draw.integers(0, 40)),
            "surface": ["home", "cart"][draw.integers(2)],
            "shop": int(draw.integers(0, 3)),
            "candidates": [
                {
                    "item_id": int(item),
                    "badge": "new",
                    "click": int(draw.integers(2)),
                    "buy": [None, 0, 1][draw.integers(3)],
                }
                for item in draw.permutation(12)[: draw.integers(1, 6)]
            ],
        }
        for _ in range(150)
    ]
    orders = [
        {
            "user_id": int(draw.integers(0, 9)),
            "time": int(draw.integers(0, 40)),
            "item_id": int(draw.integers(0, 12)),
            "shop": int(draw.integers(0, 3)),
            "place": "home",
        }
        for _ in range(300)
    ]
    world = World(requests, orders, {item: f"brand {item % 3}" for item in range(10)}, {0: "x", 1: "y"})
    world.write(folder)
    with cut_into(16, 3):
        prepare(schema(), folder, folder / "store")
    return folder


def test_statistics_are_cut_as_the_requests_are(made):
    names = sorted(path.name for path in (made / "store" / "requests").iterdir())
    assert len(names) > 2
    assert names == sorted(path.name for path in (made / "store" / "statistics").iterdir())
    for name in names:
        with (
            pq.ParquetFile(made / "store/requests" / name) as one,
            pq.ParquetFile(made / "store/statistics" / name) as two,
        ):
            sizes = [[file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] for file in (one, two)]
            assert sizes[0] == sizes[1]
            lengths = one.read()["candidates"].combine_chunks().value_lengths()
            beside = two.read()
            assert beside["bought_brand_count_3us"].combine_chunks().value_lengths().equals(lengths)
            assert beside["shown_user_count_all"].type == pa.float32()


@pytest.mark.parametrize("chosen", [slice(None), slice(5, 120, 7)])
def test_the_reader_yields_the_replayed_values_encoded_in_the_order_of_the_features(made, chosen):
    project = schema()
    store = Store.open(made / "store", project)
    positions = store.select()[chosen]
    raw = raw_requests(store, positions, history_limits={"orders": 0})
    with Reader(store, project, positions, 11, prefetch=0) as reader:
        batches = list(reader)
    for group, batch_numbers, features in [
        ("request", [batch.numbers for batch in batches], project.request_features()),
        ("candidates", [batch.candidate_numbers for batch in batches], project.candidate_features()),
    ]:
        numbers = np.concatenate(batch_numbers)
        for place, feature in enumerate(numbers_of(features)):
            logged = [request[group][feature.name] for request in raw]
            flat = logged if group == "request" else [value for values in logged for value in values]
            known = np.array([np.nan if value is None else value for value in flat])
            assert numbers[:, place].tolist() == encode_numbers(known, feature.rule).tolist(), feature.name
    names = [feature.name for feature in numbers_of(project.candidate_features())]
    assert names[0] == "price"
    assert names[1:4] == [f"bought_user_item_count_{said}" for said in ("1us", "5us", "all")]
    assert len(numbers_of(project.request_features())) == 2 + 4 + 10 + 2


def test_never_is_at_the_far_end_and_not_the_average():
    project = schema()
    (feature,) = [f for f in numbers_of(project.candidate_features()) if f.name == "bought_user_item_recency"]
    never, now, week, years = encode_numbers(np.array([np.nan, 0.0, 7 * 24.0, 5 * 365 * 24.0]), feature.rule)
    assert now < -2 < 0 < week < 2 < years < never


def test_other_statistics_leave_every_other_file_as_it_is(made, tmp_path):
    for file in made.glob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    told = []
    first = prepare(schema(), tmp_path, tmp_path / "store", progress=lambda _, words: told.append(words))
    inodes = {path: (tmp_path / "store" / path).stat().st_ino for path in first.files}
    fewer = schema({name: STATISTICS[name] for name in ("bought_brand", "shown_user")})
    told.clear()
    second = prepare(fewer, tmp_path, tmp_path / "store", progress=lambda _, words: told.append(words))
    assert "requests" not in told
    assert "statistics" in told
    made = ("statistics/", "past.arrow")
    kept = {path: entry for path, entry in first.files.items() if not path.startswith(made)}
    assert {path: entry for path, entry in second.files.items() if not path.startswith(made)} == kept
    assert all((tmp_path / "store" / path).stat().st_ino == inodes[path] for path in kept)
    assert second.fingerprint != first.fingerprint
    third = prepare(schema(), tmp_path, tmp_path / "store")
    assert third == first
    assert prepare(schema(), tmp_path, tmp_path / "store", progress=lambda _, words: told.append(words)) == first
    assert told[-1] == ALREADY
    assert not list(tmp_path.glob("store.*"))


def test_without_statistics_a_store_has_none_and_is_made_back_into_one(made, tmp_path):
    for file in made.glob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    prepare(schema(), tmp_path, tmp_path / "store")
    manifest = prepare(schema({}), tmp_path, tmp_path / "store")
    assert manifest.statistics == {}
    assert not [path for path in manifest.files if path.startswith("statistics/")]
    assert digests_of(tmp_path / "store").keys() == manifest.files.keys()
    with pytest.raises(MismatchError, match="bought_user_item"):
        Store.open(tmp_path / "store", schema())


def test_a_store_serves_a_project_that_declares_fewer_statistics_but_none_declared_otherwise(made):
    fewer = schema({"bought_brand": STATISTICS["bought_brand"]})
    assert content_digest(fewer) == content_digest(schema())
    store = Store.open(made / "store", fewer)
    (batch,) = Reader(store, fewer, store.select(), 10_000, prefetch=0)
    assert batch.candidate_numbers.shape[1] == 1 + 2
    assert batch.numbers.shape[1] == 0
    with pytest.raises(MismatchError, match="declared otherwise"):
        Store.open(made / "store", schema({"bought_brand": STATISTICS["bought_brand"] | {"windows": ["P1D"]}}))
    with pytest.raises(MismatchError, match="shown_user"):
        Store.open(made / "store", schema(STATISTICS, delay="PT0.000003S"))


def test_threads_and_memory_change_no_byte(made, tmp_path):
    for file in made.glob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    manifest = prepare(schema(), tmp_path, tmp_path / "store", threads=1, memory="150MB")
    assert manifest.files == Store.open(made / "store", schema()).manifest.files


def test_a_killed_run_goes_on_after_its_last_whole_statistic(made, tmp_path):
    for file in made.glob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())

    def stop(fraction, _words):
        if 0.87 < fraction < 0.95:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(schema(), tmp_path, tmp_path / "store", progress=stop)
    whole = list((tmp_path / "store.partial" / "staged").glob("statistic.*.parquet"))
    assert 0 < len(whole) < len(STATISTICS)
    stamps = {path.name: path.stat().st_mtime_ns for path in whole}
    seen = {}

    def look(_fraction, _words):
        seen.update({p.name: p.stat().st_mtime_ns for p in whole if p.exists()})

    manifest = prepare(schema(), tmp_path, tmp_path / "store", progress=look)
    assert seen == stamps
    assert manifest.files == Store.open(made / "store", schema()).manifest.files
