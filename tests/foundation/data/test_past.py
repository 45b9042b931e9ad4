"""The past of a store is the same in every later one, whatever came after; and any change of it is seen, and named."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from foundation.data.past import STRETCHES, check_past, past_of
from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from foundation.data.store import Store
from serving.errors import MismatchError
from tests.foundation.data.conftest import schema as plain_schema
from tests.foundation.data.conftest import write_logs

START_S = 1_600_000_000
CUT_S, DELAY_S = START_S + 150, 40
NAMES = ("impressions-0", "impressions-1", "views", "orders", "items")


def schema():
    """With a label that comes late, and statistics of what came before."""
    document = plain_schema().model_dump(mode="json")
    document["objectives"]["buy"] = {"delay": f"PT{DELAY_S}S"}
    document["statistics"] = {"shown": {"source": "impressions", "key": ["item"], "objective": "click"}}
    return Schema.model_validate(document)


def seconds_of(column):
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    return column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() // 1_000_000


def known_at(tables, cut_s):
    """What a log held at a moment: earlier rows, and labels that were ripe."""
    known = {"items": tables["items"]}
    for name in NAMES[:-1]:
        table = tables[name].filter(pa.array(seconds_of(tables[name]["time"]) < cut_s))
        if "buy" in table.column_names:
            ripe = pa.array(seconds_of(table["time"]) + DELAY_S <= cut_s)
            table = changed(table, "buy", pc.if_else(ripe, table["buy"], pa.scalar(None, pa.int64())))
        known[name] = table
    return known


def changed(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


def with_value(table, name, row, value):
    values = table[name].to_pylist()
    values[row] = value
    return changed(table, name, pa.array(values, table[name].type))


def store_of(folder, tables):
    folder.mkdir(parents=True)
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    prepare(schema(), folder, folder / "store", threads=1)
    return Store.open(folder / "store", schema())


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    root = tmp_path_factory.mktemp("tables")
    write_logs(root)
    return {name: pq.read_table(root / f"{name}.parquet") for name in NAMES}


@pytest.fixture(scope="module")
def early(tmp_path_factory, tables):
    return store_of(tmp_path_factory.mktemp("early") / "log", known_at(tables, CUT_S))


def ripe(store):
    return len(store.select(end=(CUT_S - DELAY_S) * 1_000_000 + 1))


def check(early, later):
    """As a training to the cut would: every request was read, and of late labels those that were ripe."""
    check_past(past_of(early, early.manifest.num_requests, labels=("click",)), later)
    check_past(past_of(early, ripe(early), labels=("buy",)), later)


def first_row(table):
    """Of the first request before the cut."""
    return int(np.argmin(seconds_of(table["time"])))


def test_a_log_that_has_grown_begins_as_it_did(tmp_path, tables, early):
    later = store_of(tmp_path / "log", tables)
    assert early.manifest.num_requests < later.manifest.num_requests
    assert ripe(early) > STRETCHES
    check(early, later)


def test_what_others_are_named_and_where_rows_lie_in_files_makes_no_difference(tmp_path, tables, early):
    """New users and items sort before the old ones, so that all row numbers of the store are others."""
    later = dict(tables)
    one = tables["views"].filter(pa.array(seconds_of(tables["views"]["time"]) >= CUT_S)).slice(0, 1)
    for place in range(5):
        new = with_value(with_value(one, "user_id", 0, -1 - place), "item_id", 0, -1 - place)
        later["views"] = pa.concat_tables([new, later["views"]])
    later["items"] = pa.concat_tables([later["items"], pa.table({"item_id": [-9], "brand": ["new"]})])
    for name in NAMES[:2]:
        later[name] = later[name].take(pa.array(np.arange(len(later[name]))[::-1]))
    store = store_of(tmp_path / "log", later)
    assert store.manifest.num_users > early.manifest.num_users
    check(early, store)


def old(name, column, value):
    def edit(tables):
        return tables | {name: with_value(tables[name], column, first_row(tables[name]), value)}

    return edit


def without_first_request(tables):
    table = tables["impressions-0"]
    request = table["request_id"][first_row(table)]
    return {
        name: content.filter(pc.not_equal(content["request_id"], request))
        if "request_id" in content.column_names
        else content
        for name, content in tables.items()
    }


def with_a_request_more(tables):
    table = tables["impressions-0"]
    row = table.slice(first_row(table), 1)
    return tables | {"impressions-0": pa.concat_tables([table, with_value(row, "request_id", 0, 10**6)])}


def with_a_candidate_more(tables):
    table = tables["impressions-0"]
    row = table.slice(first_row(table), 1)
    return tables | {"impressions-0": pa.concat_tables([table, with_value(row, "item_id", 0, 10**6)])}


def with_a_late_event(tables):
    row = tables["views"].slice(first_row(tables["views"]), 1)
    return tables | {"views": pa.concat_tables([tables["views"], row])}


def without_an_event(tables):
    row = first_row(tables["views"])
    return tables | {"views": pa.concat_tables([tables["views"].slice(0, row), tables["views"].slice(row + 1)])}


def with_the_first_request_in_another_shop(tables):
    request = tables["impressions-0"]["request_id"][first_row(tables["impressions-0"])]
    for name in NAMES[:2]:
        shops = pc.if_else(pc.equal(tables[name]["request_id"], request), "west", tables[name]["shop"])
        tables = tables | {name: changed(tables[name], "shop", shops)}
    return tables


def with_ripe_labels(tables):
    for name in NAMES[:2]:
        row = first_row(tables[name])
        before = tables[name]["buy"][row].as_py()
        tables = tables | {name: with_value(tables[name], "buy", row, 0 if before != 0 else 1)}
    return tables


def with_other_clicks(tables):
    table = tables["impressions-0"]
    row = first_row(table)
    return tables | {"impressions-0": with_value(table, "click", row, 1 - table["click"][row].as_py())}


def without_the_first_minute(tables):
    return {
        name: table.filter(pa.array(seconds_of(table["time"]) >= START_S + 60))
        if "time" in table.column_names
        else table
        for name, table in tables.items()
    }


def half_of_it(tables):
    return known_at(tables, START_S + 75)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (with_the_first_request_in_another_shop, "changed ones"),
        (old("impressions-0", "price", 123.0), "changed ones"),
        (old("impressions-0", "price", None), "changed ones"),
        (
            lambda tables: tables | {"items": with_value(tables["items"], "brand", 1, "other")},
            "features of users, items",
        ),
        (with_a_candidate_more, "changed ones"),
        (with_a_request_more, "others, and more of them"),
        (without_first_request, "others, and fewer of them"),
        (with_a_late_event, "other events before them"),
        (without_an_event, "other events before them"),
        (old("orders", "quantity", 77), "other events before them"),
        (old("orders", "shop", "east"), "other events before them"),
        (with_ripe_labels, "other labels of `buy`"),
        (with_other_clicks, "other labels of `click`"),
        (without_the_first_minute, "Prepare all days together"),
        (half_of_it, "a store of"),
    ],
)
def test_a_past_that_has_changed_is_refused_by_what_changed(tmp_path, tables, early, edit, words):
    later = store_of(tmp_path / "log", edit(tables))
    with pytest.raises(MismatchError) as caught:
        check(early, later)
    assert words in str(caught.value)


def test_a_click_that_changed_is_told_of_the_statistics_too_and_where_it_begins(tmp_path, tables, early):
    later = store_of(tmp_path / "log", with_other_clicks(tables))
    with pytest.raises(MismatchError) as caught:
        check(early, later)
    told = [problem.got for problem in caught.value.problems]
    assert told == ["other statistics", "other labels of `click`, which had been learned"]
    place = int(np.argmin(later.past["label.click"][: early.manifest.num_requests] == early.past["label.click"]))
    first, last = past_places(caught.value.problems[1].expected)
    assert first <= place + 1 <= last
    assert last - first <= early.manifest.num_requests // STRETCHES + 1


def past_places(words):
    first, _, last = words.removeprefix("requests ").split(", to ")[0].partition(" to ")
    return int(first), int(last)


def test_the_order_of_events_of_one_moment_counts(tmp_path, tables):
    row = tables["orders"].slice(first_row(tables["orders"]), 1)
    two = [with_value(row, "quantity", 0, quantity) for quantity in (98, 99)]
    stores = [
        store_of(tmp_path / str(place), tables | {"orders": pa.concat_tables([tables["orders"], *pair])})
        for place, pair in enumerate((two, two[::-1]))
    ]
    with pytest.raises(MismatchError, match="other events"):
        check(*stores)


def test_labels_that_were_not_ripe_may_come_or_change(tmp_path, tables, early):
    table = tables["impressions-0"]
    waiting = np.flatnonzero(seconds_of(table["time"]) + DELAY_S > CUT_S)
    flipped = table["buy"].to_numpy(zero_copy_only=False).copy()
    flipped[waiting] = 1 - np.nan_to_num(flipped[waiting])
    later = tables | {"impressions-0": changed(table, "buy", pa.array(flipped, pa.int64(), from_pandas=True))}
    check(early, store_of(tmp_path / "log", later))


def test_where_nothing_was_read_there_is_nothing_to_compare(tmp_path, tables, early):
    later = store_of(tmp_path / "log", without_the_first_minute(tables))
    check_past(past_of(early, 0, labels=("click",)), later)
    with pytest.raises(MismatchError):
        check_past(past_of(early, 1, labels=("click",)), later)
