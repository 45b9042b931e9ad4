"""What `validate` says of faulty logs: each case breaks one thing in small sound logs."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foundation.data.schema import Schema, Split
from foundation.data.validate import Validation, validate_data

START = datetime(2024, 1, 1)  # noqa: DTZ001 - logs without a time zone
REQUESTS, CANDIDATES = 20, 3
ROWS = REQUESTS * CANDIDATES
LARGEST = 2**63 - 1


def sound_tables() -> dict[str, pa.Table]:
    request = [row // CANDIDATES for row in range(ROWS)]
    times = [START + timedelta(days=number) for number in range(REQUESTS)]
    return {
        "impressions": pa.table(
            {
                "request_id": request,
                "user_id": [number % 5 for number in request],
                "time": pa.array([times[number] for number in request], pa.timestamp("us")),
                "surface": [("home", "search")[number % 2] for number in request],
                "item_id": [row % 7 for row in range(ROWS)],
                "store": [number % 3 for number in request],
                "price": [float(row) for row in range(ROWS)],
                "click": pa.array([row % 2 for row in range(ROWS)], pa.int8()),
                "buy": pa.array([None if row % 4 == 3 else int(row % 4 == 0) for row in range(ROWS)], pa.int8()),
            }
        ),
        "events": pa.table(
            {
                "user_id": [number % 5 for number in range(30)],
                "time": pa.array([START + timedelta(hours=20 * number) for number in range(30)], pa.timestamp("us")),
                "item_id": [number % 7 for number in range(30)],
                "action": ["view"] * 30,
            }
        ),
        "items": pa.table({"item_id": list(range(7)), "size": [float(item) for item in range(7)]}),
        "users": pa.table({"user_id": list(range(5)), "age": list(range(5))}),
    }


DOCUMENT = {
    "tables": {
        "user": {"buckets": 100},
        "item": {"buckets": 100},
        "store": {"buckets": 10},
        "action": {"type": "string", "buckets": 10},
    },
    "data": {
        "impressions": {
            "files": "impressions.parquet",
            "context": [{"kind": "id", "name": "store"}],
            "candidate": [{"kind": "number", "name": "price"}],
        },
        "events": {"actions": {"files": "events.parquet", "features": [{"kind": "id", "name": "action"}]}},
        "items": {"files": "items.parquet", "features": [{"kind": "number", "name": "size"}]},
        "users": {"files": "users.parquet", "features": [{"kind": "number", "name": "age"}]},
    },
    "surfaces": ["home", "search"],
    "objectives": {"click": {}, "buy": {"surfaces": ["home"]}},
}


@dataclass
class Logs:
    """Small sound logs, to be broken before they are written and checked."""

    root: Path
    tables: dict[str, pa.Table] = field(default_factory=sound_tables)
    document: dict = field(default_factory=lambda: deepcopy(DOCUMENT))
    test_from: datetime = START + timedelta(days=16)

    def values(self, table: str, column: str) -> list:
        return self.tables[table].column(column).to_pylist()

    def put(self, table: str, column: str, values: list, kind: pa.DataType | None = None) -> None:
        old = self.tables[table]
        place = old.column_names.index(column)
        self.tables[table] = old.set_column(place, column, pa.array(values, kind or old.column(column).type))

    def put_value(self, table: str, column: str, value: object, kind: pa.DataType | None = None, row: int = 4) -> None:
        values = self.values(table, column)
        values[row] = value
        self.put(table, column, values, kind)

    def cast(self, table: str, column: str, kind: pa.DataType) -> None:
        self.put(table, column, self.tables[table].column(column).cast(kind).to_pylist(), kind)

    def write(self) -> None:
        for name, table in self.tables.items():
            pq.write_table(table, self.root / f"{name}.parquet")

    def parts(self, *, change: dict[str, pa.DataType]) -> None:
        """Impressions in two files, of which the second has other types."""
        whole = self.tables.pop("impressions")
        self.document["data"]["impressions"]["files"] = "parts/*.parquet"
        (self.root / "parts").mkdir()
        second = whole.slice(ROWS // 2)
        for column, kind in change.items():
            place = second.column_names.index(column)
            values = pa.nulls(second.num_rows) if pa.types.is_null(kind) else second.column(column).cast(kind)
            second = second.set_column(place, column, values)
        pq.write_table(whole.slice(0, ROWS // 2), self.root / "parts" / "a.parquet")
        pq.write_table(second, self.root / "parts" / "b.parquet")

    def check(self, **options) -> Validation:
        schema = Schema.model_validate(self.document)
        return validate_data(schema, self.root, Split(test_from=self.test_from), threads=1, memory="500MB", **options)


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path)


def said(validation: Validation) -> list[str]:
    return [str(problem) for problem in validation.problems]


def unit(logs: Logs, table: str, stored: str, declared: str) -> None:
    """Times of a table as whole numbers in one unit, declared as another."""
    scale = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[stored]
    seconds = [int(time.replace(tzinfo=UTC).timestamp()) for time in logs.values(table, "time")]
    logs.put(table, "time", [second * scale for second in seconds], pa.int64())
    where = (
        logs.document["data"]["impressions"] if table == "impressions" else logs.document["data"]["events"]["actions"]
    )
    where["unit"] = declared


def zoned(logs: Logs, table: str) -> None:
    times = [time.replace(tzinfo=UTC) for time in logs.values(table, "time")]
    logs.put(table, "time", times, pa.timestamp("us", "UTC"))


def seconds_as_milliseconds(logs: Logs) -> None:
    seconds = [int(time.replace(tzinfo=UTC).timestamp()) for time in logs.values("impressions", "time")]
    logs.put("impressions", "time", seconds, pa.timestamp("ms"))


def repeat_row(logs: Logs, table: str) -> None:
    logs.tables[table] = pa.concat_tables([logs.tables[table], logs.tables[table].slice(2, 1)])


def row_ids(logs: Logs, values: list) -> None:
    logs.tables["impressions"] = logs.tables["impressions"].append_column("row", pa.array(values, pa.int64()))
    logs.document["data"]["impressions"]["row"] = "row"


def without(logs: Logs, table: str, column: str) -> None:
    logs.tables[table] = logs.tables[table].drop_columns([column])


def renamed(logs: Logs, table: str, old: str, new: str) -> None:
    names = [new if name == old else name for name in logs.tables[table].column_names]
    logs.tables[table] = logs.tables[table].rename_columns(names)


IMPRESSIONS, EVENTS = "impressions.parquet", "events.parquet"
CASES = {  # what is broken: (how, words of the one problem that follows)
    # columns
    "missing column": (lambda logs: without(logs, "impressions", "price"), f"{IMPRESSIONS} 'price' none"),
    "misspelt column": (
        lambda logs: renamed(logs, "impressions", "item_id", "itm_id"),
        f"{IMPRESSIONS} 'item_id' mean 'itm_id'",
    ),
    "missing label": (lambda logs: without(logs, "impressions", "buy"), f"{IMPRESSIONS} objectives.buy.column 'buy'"),
    "missing key of items": (lambda logs: without(logs, "items", "item_id"), "items.parquet 'item_id' none"),
    # types
    "strings where integers were declared": (
        lambda logs: logs.cast("impressions", "user_id", pa.string()),
        f"{IMPRESSIONS} 'user_id' integer string `type: string`",
    ),
    "integers where strings were declared": (
        lambda logs: logs.put("events", "action", [1] * 30, pa.int64()),
        f"{EVENTS} 'action' string int64",
    ),
    "floats for ids": (
        lambda logs: logs.cast("impressions", "item_id", pa.float64()),
        f"{IMPRESSIONS} 'item_id' double",
    ),
    "text for a number": (
        lambda logs: logs.cast("impressions", "price", pa.string()),
        f"{IMPRESSIONS} 'price' numeric",
    ),
    "text for a label": (lambda logs: logs.cast("impressions", "click", pa.string()), f"{IMPRESSIONS} 'click' string"),
    "number for a surface": (
        lambda logs: logs.put("impressions", "surface", [1] * ROWS, pa.int64()),
        f"{IMPRESSIONS} 'surface' string int64",
    ),
    "date for a time": (
        lambda logs: logs.cast("impressions", "time", pa.date32()),
        f"{IMPRESSIONS} 'time' timestamp date32 day",
    ),
    "integer time without unit": (
        lambda logs: unit(logs, "impressions", "s", None),
        f"{IMPRESSIONS} 'time' int64 `unit: s`",
    ),
    "timestamp with unit": (
        lambda logs: logs.document["data"]["impressions"].update(unit="ms"),
        f"{IMPRESSIONS} 'time' timestamp[us] Remove `unit`",
    ),
    "text for a time": (lambda logs: logs.cast("events", "time", pa.string()), f"{EVENTS} 'time' timestamp string"),
    "one file of another type": (
        lambda logs: logs.parts(change={"user_id": pa.string()}),
        "b.parquet 'user_id' integer string",
    ),
    "request ids of two types": (
        lambda logs: logs.parts(change={"request_id": pa.string()}),
        "b.parquet 'request_id' int64 string a.parquet",
    ),
    # nulls and ids
    "null request": (
        lambda logs: logs.put_value("impressions", "request_id", None),
        f"{IMPRESSIONS} 'request_id' null 1 60",
    ),
    "null time": (lambda logs: logs.put_value("events", "time", None), f"{EVENTS} 'time' null 1 30"),
    "null user of an event": (lambda logs: logs.put_value("events", "user_id", None), f"{EVENTS} 'user_id' null 1 30"),
    "null key of users": (lambda logs: logs.put_value("users", "user_id", None), "users.parquet 'user_id' null 1 5"),
    "null row id": (lambda logs: row_ids(logs, [None, *range(1, ROWS)]), f"{IMPRESSIONS} 'row' null 1"),
    "request without candidates": (
        lambda logs: logs.put_value("impressions", "item_id", None),
        f"{IMPRESSIONS} 'item_id' candidate null 1 60",
    ),
    "negative id": (
        lambda logs: logs.put_value("impressions", "item_id", -1),
        f"{IMPRESSIONS} 'item_id' -1 1 60 drop uint64",
    ),
    "largest id": (
        lambda logs: logs.put_value("events", "item_id", LARGEST),
        f"{EVENTS} 'item_id' {LARGEST} 1 30 drop",
    ),
    "negative id of a feature": (
        lambda logs: logs.put("impressions", "store", [-7] * ROWS),
        f"{IMPRESSIONS} 'store' data.impressions.context.store -7 60 null",
    ),
    "negative row id": (lambda logs: row_ids(logs, [-5, *range(1, ROWS)]), f"{IMPRESSIONS} 'row' -5 1"),
    # numbers and labels
    "NaN": (
        lambda logs: logs.put_value("impressions", "price", math.nan),
        f"{IMPRESSIONS} 'price' finite nan 1 60 null",
    ),
    "infinity": (lambda logs: logs.put_value("items", "size", math.inf), "items.parquet 'size' finite inf 1 7 null"),
    "minus infinity": (lambda logs: logs.put_value("items", "size", -math.inf), "items.parquet 'size' finite -inf 1 7"),
    "label beyond 0 and 1": (
        lambda logs: logs.put_value("impressions", "click", 2),
        f"{IMPRESSIONS} 'click' 0, 1, 2 1 60",
    ),
    "probability for a label": (
        lambda logs: logs.put_value("impressions", "click", 0.5, pa.float64()),
        f"{IMPRESSIONS} 'click' 0, 1, 0.5 1 60",
    ),
    "objective without positives": (
        lambda logs: logs.put("impressions", "click", [0] * ROWS),
        f"{IMPRESSIONS} 'click' objectives.click.column 0 positives 48 negatives",
    ),
    "objective without negatives": (
        lambda logs: logs.put("impressions", "click", [1] * ROWS),
        f"{IMPRESSIONS} 'click' 48 positives 0 negatives",
    ),
    "positives on another surface only": (
        lambda logs: logs.put("impressions", "buy", [row // CANDIDATES % 2 for row in range(ROWS)]),
        f"{IMPRESSIONS} 'buy' 0 positives 24 negatives",
    ),
    "label never settled in the training period": (
        lambda logs: logs.document["objectives"]["click"].update(delay=timedelta(days=100)),
        f"{IMPRESSIONS} 'click' 0 positives 0 negatives 100d delay",
    ),
    "label 1 of a product whose condition is 0": (
        lambda logs: logs.document["objectives"]["buy"].update(given="click"),
        f"{IMPRESSIONS} 'buy' `click` {sum(row % 4 == 0 and row // 3 % 2 == 0 for row in range(ROWS))} `given` masked",
    ),
    "masked objective without positives where its condition is met": (
        lambda logs: logs.document["objectives"]["buy"].update(given="click", conditional="masked"),
        f"'buy' `click` 0 positives {sum(row % 4 == 1 and row // 3 % 2 == 0 for row in range(48))} negatives `given`",
    ),
    # times
    "milliseconds declared as seconds": (
        lambda logs: unit(logs, "impressions", "ms", "s"),
        f"{IMPRESSIONS} 'time' `unit: s` 1704067200000 60 rows `unit: ms` fit",
    ),
    "seconds declared as milliseconds": (
        lambda logs: unit(logs, "events", "s", "ms"),
        f"{EVENTS} 'time' `unit: ms` 1704067200 30 rows `unit: s` fit",
    ),
    "nanoseconds declared as seconds": (
        lambda logs: unit(logs, "impressions", "ns", "s"),
        f"{IMPRESSIONS} 'time' 1704067200000000000 `unit: ns` fit",
    ),
    "seconds written as milliseconds": (seconds_as_milliseconds, f"{IMPRESSIONS} 'time' 1970-01-20 60 rows"),
    "one time from another century": (
        lambda logs: logs.put_value("events", "time", datetime(1900, 1, 1)),  # noqa: DTZ001
        f"{EVENTS} 'time' 1900-01-01 1 30 drop",
    ),
    "time zone on one side": (lambda logs: zoned(logs, "events"), f"{IMPRESSIONS} 'time' zone {EVENTS} timestamp[us]"),
    "time zone on the other side": (lambda logs: zoned(logs, "impressions"), f"{EVENTS} 'time' zone {IMPRESSIONS}"),
    "no event before the last request": (
        lambda logs: logs.put("events", "time", [START + timedelta(days=100)] * 30),
        f"{EVENTS} 'time' 2024-01-20 30 history empty",
    ),
    "no training period": (lambda logs: setattr(logs, "test_from", START), "split.test_from 2024-01-01 training"),
    "no test period": (
        lambda logs: setattr(logs, "test_from", START + timedelta(days=99)),
        "split.test_from 2024-04-09 test 2024-01-20",
    ),
    # requests and surfaces
    "request with two users": (
        lambda logs: logs.put_value("impressions", "user_id", 4),
        f"{IMPRESSIONS} 'user_id' request 1 requests 1 instance",
    ),
    "request with two times": (
        lambda logs: logs.put_value("impressions", "time", START),
        f"{IMPRESSIONS} 'time' request 1 requests 1 instance",
    ),
    "request on two surfaces": (
        lambda logs: logs.put_value("impressions", "surface", "home"),
        f"{IMPRESSIONS} 'surface' request 1 requests 1 instance",
    ),
    "request with two values of a context": (
        lambda logs: logs.put_value("impressions", "store", 2),
        f"{IMPRESSIONS} 'store' request 1 requests 1 instance",
    ),
    "surface nobody listed": (
        lambda logs: logs.put(
            "impressions",
            "surface",
            ["hom" if name == "home" else name for name in logs.values("impressions", "surface")][:3]
            + logs.values("impressions", "surface")[3:],
        ),
        f"{IMPRESSIONS} 'surface' 'hom' 3 60 `home` mean",
    ),
    "surface without rows": (
        lambda logs: logs.document.update(surfaces=["home", "search", "cart"]),
        "surfaces.2 'cart' none",
    ),
    "item twice in a request": (
        lambda logs: repeat_row(logs, "impressions"),
        f"{IMPRESSIONS} 'item_id' once 1 repeated request 0, item 2: 2 rows",
    ),
    "row id twice": (lambda logs: row_ids(logs, [7, 7, *range(10, ROWS + 8)]), f"{IMPRESSIONS} 'row' once 1 values 7"),
    "item twice in the items table": (
        lambda logs: repeat_row(logs, "items"),
        "items.parquet 'item_id' once 1 values 2",
    ),
    "user twice in the users table": (
        lambda logs: repeat_row(logs, "users"),
        "users.parquet 'user_id' once 1 values 2",
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_fault_of_the_logs_gives_one_problem_with_file_column_value_and_remedy(logs, case):
    spoil, words = case
    spoil(logs)
    logs.write()

    found = logs.check().problems

    assert len(found) == 1, said(logs.check())
    missing = [word for word in words.split(" ") if word not in str(found[0])]
    assert not missing, f"{missing} not in {found[0]}"
    assert found[0].remedy


def test_sound_logs_have_no_problems_and_are_counted(logs):
    logs.write()

    validation = logs.check()
    summary = validation.summary

    assert said(validation) == []
    assert summary is not None
    assert (summary.num_rows, summary.num_requests, summary.num_users, summary.num_items) == (60, 20, 5, 7)
    assert (summary.training_requests, summary.test_requests) == (16, 4)
    assert summary.first == START.replace(tzinfo=UTC)
    assert summary.last == (START + timedelta(days=19)).replace(tzinfo=UTC)
    assert summary.rows == {"home": 30, "search": 30}
    assert [(head.surface, head.objective) for head in summary.heads] == [
        ("home", "click"),
        ("home", "buy"),
        ("search", "click"),
    ]
    assert [(log.name, log.num_events, log.after_last_request) for log in summary.logs] == [("actions", 30, 7)]
    assert (summary.unknown_items, summary.unknown_users) == (0.0, 0.0)


def test_labels_are_counted_as_a_slow_loop_counts_them(logs):
    logs.document["objectives"]["buy"]["delay"] = timedelta(days=2, microseconds=1)
    logs.write()
    rows = logs.tables["impressions"].to_pylist()
    cut = logs.test_from

    validation = logs.check()

    assert validation.summary is not None
    for head in validation.summary.heads:
        delay = timedelta(days=2, microseconds=1) if head.objective == "buy" else timedelta(0)
        known = [row for row in rows if row["surface"] == head.surface and row[head.objective] is not None]
        training = [row for row in known if row["time"] < cut and row["time"] + delay <= cut]
        assert head.known == len(known)
        assert head.positives == sum(row[head.objective] for row in known)
        assert head.training_known == len(training)
        assert head.training_positives == sum(row[head.objective] for row in training)


def test_labels_of_a_masked_objective_count_where_and_when_its_condition_is_met(logs):
    days = timedelta(days=3)
    logs.document["objectives"]["click"]["delay"] = days
    logs.document["objectives"]["buy"].update(given="click", conditional="masked", delay=timedelta(days=1))
    logs.put("impressions", "buy", [None if row % 8 == 7 else row // 2 % 2 for row in range(ROWS)])
    logs.write()
    rows = logs.tables["impressions"].to_pylist()

    validation = logs.check()

    assert said(validation) == []
    assert validation.summary is not None
    [head] = [head for head in validation.summary.heads if head.objective == "buy"]
    known = [row for row in rows if row["surface"] == "home" and row["click"] == 1 and row["buy"] is not None]
    training = [row for row in known if row["time"] + days <= logs.test_from]
    assert (head.known, head.positives) == (len(known), sum(row["buy"] for row in known))
    assert (head.training_known, head.training_positives) == (len(training), sum(row["buy"] for row in training))


def test_shares_of_unknown_items_and_users_are_hints_and_no_problems(logs):
    logs.tables["items"] = logs.tables["items"].slice(1)
    logs.tables["users"] = logs.tables["users"].slice(0, 2)
    logs.write()

    validation = logs.check()

    assert said(validation) == []
    assert validation.summary is not None
    items, users = logs.values("impressions", "item_id"), logs.values("impressions", "user_id")
    assert validation.summary.unknown_items == items.count(0) / ROWS
    assert validation.summary.unknown_users == sum(user > 1 for user in users) / ROWS


FINE = {
    "no items and no users": lambda logs: (logs.document["data"].pop("items"), logs.document["data"].pop("users")),
    "unsigned ids up to the largest": lambda logs: [
        logs.put(table, "item_id", [2**64 - 1 - item for item in logs.values(table, "item_id")], pa.uint64())
        for table in ("impressions", "events", "items")
    ],
    "the largest signed id in an unsigned column": lambda logs: [
        logs.put(table, "item_id", [LARGEST - item for item in logs.values(table, "item_id")], pa.uint64())
        for table in ("impressions", "events", "items")
    ],
    "small integers": lambda logs: logs.cast("impressions", "item_id", pa.int16()),
    "listed negative ids": lambda logs: (
        logs.document["tables"].update(store={"values": [-1, 0, 1]}),
        logs.put("impressions", "store", [number % 3 - 1 for number in logs.values("impressions", "store")]),
    ),
    "string ids": lambda logs: [
        (
            logs.cast(table, "item_id", pa.string()),
            logs.document["tables"].update(item={"type": "string", "buckets": 9}),
        )
        for table in ("impressions", "events", "items")
    ],
    "dictionary strings": lambda logs: logs.cast("impressions", "surface", pa.dictionary(pa.int32(), pa.string())),
    "a column all null in one file": lambda logs: logs.parts(change={"store": pa.null(), "buy": pa.null()}),
    "integers that widen": lambda logs: logs.parts(
        change={"user_id": pa.int32(), "price": pa.float32(), "click": pa.bool_()}
    ),
    "NaN for an unknown label": lambda logs: logs.put_value("impressions", "click", math.nan, pa.float64()),
    "null features": lambda logs: (
        logs.put_value("impressions", "price", None),
        logs.put_value("items", "size", None),
        logs.put_value("events", "action", None),
    ),
    "an item twice with row ids": lambda logs: (repeat_row(logs, "impressions"), row_ids(logs, list(range(ROWS + 1)))),
    "times with zones": lambda logs: (zoned(logs, "impressions"), zoned(logs, "events")),
    "seconds": lambda logs: (unit(logs, "impressions", "s", "s"), unit(logs, "events", "s", "s")),
    "milliseconds beside timestamps": lambda logs: unit(logs, "impressions", "ms", "ms"),
    "nanosecond timestamps": lambda logs: logs.cast("impressions", "time", pa.timestamp("ns")),
    "rows in any order": lambda logs: logs.tables.update(
        impressions=logs.tables["impressions"].take(list(range(ROWS))[::-1])
    ),
    "a product that is 1 where its condition is, and on its surface": lambda logs: (
        logs.document["objectives"]["buy"].update(given="click"),
        logs.put("impressions", "buy", [int(row % 4 == 1 or row // 3 % 2 == 1) for row in range(ROWS)]),
    ),
    "events later than the last request": lambda logs: logs.put_value("events", "time", START + timedelta(days=400)),
}


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in FINE.items()])
def test_what_is_allowed_gives_no_problem(logs, change):
    change(logs)
    logs.write()

    assert said(logs.check()) == []


def test_missing_files_and_empty_patterns_are_named(logs):
    logs.document["data"]["events"]["actions"]["files"] = "absent/*.parquet"
    logs.document["data"]["users"]["files"] = "nobody.parquet"
    logs.write()

    found = said(logs.check())

    assert len(found) == 2
    assert any("data.events.actions.files" in text and "absent/*.parquet" in text for text in found)
    assert any("data.users.files" in text and "nobody.parquet" in text for text in found)


def test_a_table_without_rows_is_named(logs):
    logs.tables["impressions"] = logs.tables["impressions"].slice(0, 0)
    logs.tables["events"] = logs.tables["events"].slice(0, 0)
    logs.write()

    validation = logs.check()
    found = said(validation)

    assert validation.summary is None
    assert len(found) == 2
    assert all("at least one row" in text for text in found)
    assert "impressions.parquet" in found[0]
    assert "events.parquet" in found[1]


@pytest.mark.parametrize("length", [0, 3, 100, -1])
def test_a_truncated_file_is_named(logs, length):
    logs.parts(change={})
    logs.write()
    damaged = logs.root / "parts" / "b.parquet"
    damaged.write_bytes(damaged.read_bytes()[:length])

    found = said(logs.check())

    assert len(found) == 1
    assert str(damaged) in found[0]


def test_damage_inside_a_file_is_named_and_hides_no_other_table(logs):
    logs.put_value("users", "user_id", -3)
    logs.write()
    file = logs.root / "impressions.parquet"
    content = bytearray(file.read_bytes())
    content[4:400] = b"\xff" * 396
    file.write_bytes(content)

    found = said(logs.check())

    assert len(found) == 2
    assert "impressions.parquet" in found[0]
    assert "readable parquet" in found[0]
    assert "users.parquet" in found[1]


def test_all_faults_are_listed_at_once(logs):
    """Faults of columns, rows, requests and totals together; none hides another."""
    for name in (
        "negative id of a feature",
        "request with two users",
        "surface nobody listed",
        "objective without negatives",
        "null user of an event",
        "infinity",
        "user twice in the users table",
    ):
        CASES[name][0](logs)
    logs.put_value("impressions", "buy", 2)
    renamed(logs, "impressions", "price", "prize")
    logs.write()

    found = said(logs.check())

    for words in (
        "Did you mean 'prize'",
        "-7 in 60",
        "2 in 1 of 60",
        "1 requests with several",
        "'hom'",
        "45 positives and 0 negatives",  # of 48: three are on the surface that nobody listed
        "null in 1 of 30",
        "inf in 1 of 7",
        "users.parquet: column 'user_id'",
    ):
        assert any(words in text for text in found), (words, found)


def test_a_wrong_unit_hides_no_request_with_two_users(logs):
    unit(logs, "impressions", "ns", "s")
    logs.put_value("impressions", "user_id", 4)
    logs.write()

    found = said(logs.check())

    assert len(found) == 2
    assert any("`unit: ns` would fit" in text for text in found)
    assert any("'user_id'" in text for text in found)


def test_only_three_examples_are_shown(logs):
    names = [f"unknown {row}" for row in range(ROWS)]
    logs.put("impressions", "surface", names)
    logs.tables["impressions"] = pa.concat_tables([logs.tables["impressions"]] * 2)
    logs.write()

    found = said(logs.check())

    assert sum("'unknown" in text for text in found) == 3
    repeated = next(text for text in found if "once in a request" in text)
    assert "60 repeated" in repeated
    assert repeated.count("2 rows") == 3


def test_a_sample_reads_the_first_rows_and_judges_no_totals(logs):
    logs.put("impressions", "click", [1] * 12 + [0] * (ROWS - 12))
    logs.put_value("impressions", "price", math.nan, row=4)
    logs.put_value("impressions", "price", math.nan, row=50)
    logs.document["surfaces"] = ["home", "search", "cart"]
    logs.write()

    validation = logs.check(sample_rows=12)

    assert len(validation.problems) == 1
    assert "nan in 1 of 12 rows" in said(validation)[0]
    assert validation.summary is not None
    assert validation.summary.num_rows == 12


def test_a_split_with_a_time_zone_is_the_same_instant(logs):
    logs.test_from = datetime(2024, 1, 17, 5, tzinfo=UTC).astimezone()
    logs.write()

    summary = logs.check().summary

    assert summary is not None
    assert (summary.training_requests, summary.test_requests) == (17, 3)


def test_nothing_is_written_beside_the_logs(logs):
    logs.write()
    before = sorted(logs.root.rglob("*"))

    logs.check()

    assert sorted(logs.root.rglob("*")) == before
