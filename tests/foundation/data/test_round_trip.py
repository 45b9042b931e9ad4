"""Tables → prepare → store → reader, against a plain Python reading of the same tables."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foundation.data.prepare import prepare
from foundation.data.reader import Reader
from foundation.data.schema import IdFeature, Schema
from foundation.data.store import Store
from serving.ids import encode_ints, encode_strings, int_keys, row_ids, salt_of, string_key
from serving.numbers import encode_numbers

INTEGERS = st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63)])
STRINGS = st.sampled_from(["", "a", "A", "ä", "日本", "a'b"])
SURFACES = ("home", "it's search")
LIMITS = {"views": 3, "orders": 4}
NUMBERS = st.none() | st.floats(-1e6, 1e6)


def keys(kind):
    return INTEGERS if kind == "int" else STRINGS


@st.composite
def projects(draw):
    """A schema and its tables as lists of rows."""
    kinds = {name: draw(st.sampled_from(["int", "string"])) for name in ("user", "item", "shop", "brand", "request")}
    own_row = draw(st.booleans())
    moments = st.integers(0, 9)
    requests = draw(st.lists(keys(kinds["request"]), min_size=1, max_size=6, unique=True))
    shown = []
    for request in requests:
        shared = {
            "request": request,
            "user": draw(keys(kinds["user"])),
            "time": draw(moments),
            "surface": draw(st.sampled_from(SURFACES)),
            "shop": draw(st.none() | keys(kinds["shop"])),
            "age": draw(NUMBERS),
        }
        for item in draw(st.lists(keys(kinds["item"]), min_size=1, max_size=4, unique=True)):
            labels = {name: draw(st.sampled_from([0, 1, None])) for name in ("click", "buy")}
            own = {"item": item, "brand": draw(st.none() | keys(kinds["brand"])), "price": draw(NUMBERS)}
            shown.append(shared | own | labels)
    shown = draw(st.permutations(shown))
    places = draw(st.permutations(range(-3, len(shown) - 3)))
    shown = [row | {"row": place} for row, place in zip(shown, places, strict=True)]
    event = st.fixed_dictionaries(
        {
            "user": keys(kinds["user"]),
            "time": moments,
            "item": keys(kinds["item"]),
            "shop": st.none() | keys(kinds["shop"]),
            "action": st.sampled_from(["view", None, "add"]),
            "quantity": NUMBERS,
        }
    )
    logs = {log: draw(st.lists(event, min_size=1, max_size=25)) for log in LIMITS}
    item = st.fixed_dictionaries(
        {"item": keys(kinds["item"]), "brand": st.none() | keys(kinds["brand"]), "size": NUMBERS}
    )
    user = st.fixed_dictionaries({"user": keys(kinds["user"]), "home": st.none() | STRINGS})
    items = draw(st.lists(item, min_size=1, max_size=3, unique_by=lambda row: row["item"]))
    users = draw(st.lists(user, min_size=1, max_size=3, unique_by=lambda row: row["user"]))
    return make_schema(kinds, own_row=own_row), kinds, {"shown": shown, "items": items, "users": users, **logs}


def make_schema(kinds, *, own_row):
    tables = {name: {"type": kinds[name], "buckets": 5} for name in ("user", "item", "shop", "brand")}
    tables |= {"action": {"type": "string", "values": ["view"]}, "town": {"type": "string", "buckets": 3}}
    number, of_id = {"kind": "number"}, {"kind": "id"}
    features = [
        number | {"name": "quantity", "rule": {"transform": "log1p"}},
        of_id | {"name": "action"},
        of_id | {"name": "place", "column": "shop", "table": "shop"},
    ]
    log = {"user": "user", "item": "item", "unit": "s"}
    impressions = {
        "files": "shown.parquet",
        **{name: name for name in ("request", "user", "item")},
        "unit": "s",
        "row": "row" if own_row else None,
        "context": [of_id | {"name": "shop"}, number | {"name": "age"}],
        "candidate": [of_id | {"name": "label", "column": "brand", "table": "brand"}, number | {"name": "price"}],
    }
    return Schema.model_validate(
        {
            "tables": tables,
            "surfaces": SURFACES,
            "objectives": {"buy": {}, "clicked": {"column": "click"}},
            "data": {
                "impressions": impressions,
                "events": {
                    "views": {"files": "views.parquet", "limit": LIMITS["views"], **log},
                    "orders": {"files": "orders.parquet", "limit": LIMITS["orders"], "features": features, **log},
                },
                "items": {
                    "files": "items.parquet",
                    "item": "item",
                    "features": [of_id | {"name": "brand"}, number | {"name": "size"}],
                },
                "users": {
                    "files": "users.parquet",
                    "user": "user",
                    "features": [of_id | {"name": "home", "table": "town"}],
                },
            },
        }
    )


def write_tables(folder, kinds, tables):
    arrow = {"int": pa.int64(), "string": pa.string()}
    types = {name: arrow[kind] for name, kind in kinds.items()}
    types |= {"surface": pa.string(), "action": pa.string(), "home": pa.string(), "time": pa.int64(), "row": pa.int64()}
    types |= {"click": pa.int8(), "buy": pa.float32()}
    for name, rows in tables.items():
        schema = pa.schema([(column, types.get(column, pa.float64())) for column in rows[0]])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{name}.parquet")


class Reference:
    """The definitions, read off the tables one value at a time."""

    def __init__(self, schema, kinds, tables):
        self.schema, self.kinds, self.tables = schema, kinds, tables
        self.items = {row["item"]: row for row in tables["items"]}
        self.users = {row["user"]: row for row in tables["users"]}

    def code(self, value, table):
        space = self.schema.id_space(table)
        if space.type == "string":
            return int(encode_strings([value], space, table)[0])
        return int(encode_ints(np.array([value or 0]), np.array([value is None]), space, table)[0])

    def encoded(self, values, features):
        """(ids, numbers) of raw values by feature name."""
        ids = [self.code(values.get(f.name), f.table_name) for f in features if isinstance(f, IdFeature)]
        numbers = [
            float(encode_numbers(np.array([np.nan if values.get(f.name) is None else values[f.name]]), f.rule)[0])
            for f in features
            if not isinstance(f, IdFeature)
        ]
        return ids, numbers

    def key(self, value, table):
        kind = self.kinds[table]
        return int_keys(np.array([value]), table)[0] if kind == "int" else np.uint64(string_key(value, salt_of(table)))

    def row_id(self, row):
        if self.schema.data.impressions.row:
            return row["row"]
        request, item = self.key(row["request"], "request"), self.key(row["item"], "item")
        return int(row_ids(np.array([request]), np.array([item]))[0])

    def history(self, log, user, time):
        rows = sorted((r for r in self.tables[log] if r["user"] == user and r["time"] < time), key=lambda r: r["time"])
        return [self.event(log, row) for row in rows[-LIMITS[log] :]]

    def event(self, log, row):
        own = {"quantity": row["quantity"], "action": row["action"], "place": row["shop"]} if log == "orders" else {}
        values = {"item": row["item"]} | self.item(row["item"]) | own
        return row["time"] * 1_000_000, *self.encoded(values, self.schema.event_features(log))

    def item(self, item):
        return {name: value for name, value in self.items.get(item, {}).items() if name != "item"}

    def requests(self):
        grouped = {}
        for row in self.tables["shown"]:
            grouped.setdefault(row["request"], []).append(row)
        ordered = sorted(grouped.items(), key=lambda pair: (pair[1][0]["time"], as_bytes(pair[0])))
        return [self.request(rows) for _, rows in ordered]

    def request(self, rows):
        head = rows[0]
        features = self.schema.request_features()
        values = head | {"home": self.users.get(head["user"], {}).get("home")}
        candidates = []
        for row in sorted(rows, key=self.row_id):
            own = {"item": row["item"], "label": row["brand"], "price": row["price"]} | self.item(row["item"])
            labels = [np.nan if row[name] is None else float(row[name]) for name in ("buy", "click")]
            candidates.append((self.row_id(row), *self.encoded(own, self.schema.candidate_features()), labels))
        return {
            "time": head["time"] * 1_000_000,
            "surface": SURFACES.index(head["surface"]),
            "features": self.encoded(values, features),
            "candidates": candidates,
            "histories": {log: self.history(log, head["user"], head["time"]) for log in LIMITS},
        }


def as_bytes(value):
    return value.encode() if isinstance(value, str) else value


def unpacked(batch):
    """A batch as what `Reference.requests` says."""

    def rows(offsets, place, *columns):
        span = range(offsets[place], offsets[place + 1])
        return [tuple(column[row].tolist() for column in columns) for row in span]

    columns = (batch.row_ids, batch.candidate_ids, batch.candidate_numbers, batch.labels)
    return [
        {
            "time": int(batch.times[place]),
            "surface": int(batch.surfaces[place]),
            "features": (batch.ids[place].tolist(), batch.numbers[place].tolist()),
            "candidates": rows(batch.candidate_offsets, place, *columns),
            "histories": {
                log: rows(history.offsets, place, history.times, history.ids, history.numbers)
                for log, history in batch.histories.items()
            },
        }
        for place in range(batch.num_requests)
    ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(project=projects(), batch_requests=st.integers(1, 4))
def test_the_reader_yields_what_the_tables_say(tmp_path_factory, project, batch_requests):
    schema, kinds, tables = project
    root = tmp_path_factory.mktemp("project")
    write_tables(root, kinds, tables)
    prepare(schema, root, root / "store", threads=1)
    store = Store.open(root / "store", schema, verify=True)
    with Reader(store, schema, store.select(), batch_requests) as reader:
        read = [request for batch in reader for request in unpacked(batch)]
    np.testing.assert_equal(read, Reference(schema, kinds, tables).requests())
