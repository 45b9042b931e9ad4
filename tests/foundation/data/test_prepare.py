import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from foundation.data.store import Store
from serving.errors import DataError, UserError

# A real run that ends by a signal, at its STOPth word or at its STOPth `fsync`, which is inside a step; or for want of
# disk.
RUN = """
import json, os, resource, signal, sys
from pathlib import Path
from foundation.data import parts
from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from serving.errors import UserError

root, stop_at, stop, signal_name, largest_file = Path(sys.argv[1]), *sys.argv[2:]
parts.REQUESTS_A_ROW_GROUP, parts.ROW_GROUPS_A_PART = 64, 3
passed = {"word": 0, "fsync": 0}
fsync = os.fsync

def pass_by(place):
    passed[place] += 1
    if place == stop_at and passed[place] == int(stop):
        os.kill(os.getpid(), getattr(signal, signal_name))

def progress(fraction, message):
    pass_by("word")

def killing_fsync(descriptor):
    pass_by("fsync")
    fsync(descriptor)

os.fsync = killing_fsync

if largest_file != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest_file), int(largest_file)))
try:
    prepare(Schema.model_validate_json((root / "schema.json").read_text()), root, root / "store", progress=progress)
except UserError as error:
    print(error)
    sys.exit(3)
"""


def run(tables, *, stop_at="word", stop=0, by="SIGKILL", largest_file=0):
    (tables.root / "schema.json").write_text(tables.schema.model_dump_json())
    command = [sys.executable, "-c", RUN, str(tables.root), stop_at, str(stop), by, str(largest_file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def leftovers(tables):
    return sorted(path.name for path in tables.root.iterdir() if path.name.startswith("store"))


def rewritten(path, change):
    """Write the table of a file again, changed."""
    pq.write_table(change(pq.read_table(path)), path)


def with_column(name, values):
    def change(table):
        return table.set_column(table.schema.get_field_index(name), name, values(table[name]))

    return change


def with_value(name, row, value):
    def values(column):
        content = column.to_pylist()
        content[row] = value
        return pa.array(content, column.type)

    return with_column(name, values)


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 4, "memory": "200MB"}])
def test_same_tables_same_store_whatever_threads_and_memory(log, tables, options):
    manifest = prepare(tables.schema, tables.root, tables.folder, **options)
    assert manifest.fingerprint == log.store.fingerprint
    assert leftovers(tables) == ["store"]


def test_characters_of_a_pattern_in_the_folders_name_are_its_name(log, small_row_groups, tmp_path):
    root = shutil.copytree(log.root, tmp_path / "logs [1-9] of*", ignore=shutil.ignore_patterns("store"))
    assert prepare(log.schema, root, root / "store").fingerprint == log.store.fingerprint


def test_a_finished_store_is_left_alone_and_that_is_said(tables):
    first = prepare(tables.schema, tables.root, tables.folder)
    before = {path: path.stat().st_mtime_ns for path in tables.folder.rglob("*")}
    said = []
    assert prepare(tables.schema, tables.root, tables.folder, progress=lambda *words: said.append(words)) == first
    assert said == [(1.0, "already prepared from these tables")]
    assert {path: path.stat().st_mtime_ns for path in tables.folder.rglob("*")} == before


def test_changed_tables_replace_the_store(tables):
    old = prepare(tables.schema, tables.root, tables.folder)
    rewritten(tables.root / "views.parquet", lambda table: table.slice(1))
    new = prepare(tables.schema, tables.root, tables.folder)
    assert new.fingerprint != old.fingerprint
    assert new.num_events["views"] == old.num_events["views"] - 1
    assert Store.open(tables.folder, tables.schema, verify=True).fingerprint == new.fingerprint
    assert leftovers(tables) == ["store"]


def test_a_damaged_store_is_made_again(tables):
    manifest = prepare(tables.schema, tables.root, tables.folder)
    (tables.folder / "items.arrow").unlink()
    assert prepare(tables.schema, tables.root, tables.folder).fingerprint == manifest.fingerprint
    assert Store.open(tables.folder, tables.schema, verify=True).fingerprint == manifest.fingerprint


def test_progress_rises_to_one(tables):
    said = []
    prepare(tables.schema, tables.root, tables.folder, progress=lambda fraction, _: said.append(fraction))
    assert said == sorted(said)
    assert (said[0], said[-1]) == (0.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop_at", "stop", "by"),
    [
        ("word", 2, "SIGKILL"),
        ("word", 6, "SIGTERM"),
        ("word", 9, "SIGKILL"),
        ("fsync", 5, "SIGKILL"),
        ("fsync", 13, "SIGTERM"),
        ("fsync", 18, "SIGKILL"),
        ("fsync", 22, "SIGKILL"),
    ],
)
def test_a_killed_run_goes_on_and_ends_with_the_same_store(log, tables, stop_at, stop, by):
    assert run(tables, stop_at=stop_at, stop=stop, by=by).returncode == -getattr(signal, by)
    assert leftovers(tables) == ["store.partial"]
    finished = (tables.root / "store.partial" / "store").rglob("*.*")
    written = {path.name: path.stat().st_ino for path in finished if path.suffix in (".arrow", ".parquet")}

    said = []
    manifest = prepare(tables.schema, tables.root, tables.folder, progress=lambda _, word: said.append(word))

    assert said[0] == "going on from an unfinished run"
    assert manifest.fingerprint == log.store.fingerprint
    assert contents(tables.folder).keys() == contents(log.folder).keys()
    again = {path.name: path.stat().st_ino for path in tables.folder.rglob("*.*") if path.name in written}
    assert again == written, "a finished file was written again"
    assert leftovers(tables) == ["store"]


@pytest.mark.slow
def test_a_killed_run_starts_afresh_if_the_tables_have_changed(tables):
    assert run(tables, stop=9).returncode == -signal.SIGKILL
    rewritten(tables.root / "items.parquet", lambda table: table.slice(1))
    said = []
    manifest = prepare(tables.schema, tables.root, tables.folder, progress=lambda _, word: said.append(word))
    assert said[0] == "checking rows"
    assert prepare(tables.schema, tables.root, tables.root / "other").fingerprint == manifest.fingerprint


@pytest.mark.slow
def test_a_full_disk_is_a_clear_error_and_the_next_run_goes_on(log, tables):
    ended = run(tables, largest_file=20_000)
    assert ended.returncode == 3, ended.stderr
    assert "run the same command again" in ended.stdout
    assert not tables.folder.exists()
    assert prepare(tables.schema, tables.root, tables.folder).fingerprint == log.store.fingerprint


def test_two_runs_at_once_are_refused(tables):
    refused = []

    def second(_fraction, _message):
        with pytest.raises(UserError, match="another one at work"):
            prepare(tables.schema, tables.root, tables.folder)
        refused.append(True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tables.schema, tables.root, tables.folder, progress=second)
    assert refused


@pytest.mark.parametrize("name", ["impressions-1", "views", "items"])
@pytest.mark.parametrize("kept", [0, 3, 0.5])
def test_a_truncated_file_is_named(tables, name, kept):
    path = tables.root / f"{name}.parquet"
    size = int(path.stat().st_size * kept) if isinstance(kept, float) else kept
    os.truncate(path, size)
    with pytest.raises(DataError, match=rf"{name}\.parquet.*Write the file again"):
        prepare(tables.schema, tables.root, tables.folder)
    assert leftovers(tables) == []


def test_a_damaged_page_is_an_error_that_names_the_file(tables):
    path = tables.root / "views.parquet"
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with pytest.raises(DataError, match="readable parquet"):
        prepare(tables.schema, tables.root, tables.folder)
    assert not tables.folder.exists()


def nan_price(table):
    prices = table["price"].to_numpy().copy()
    prices[3] = float("nan")
    return table.set_column(table.schema.get_field_index("price"), "price", pa.array(prices))


BROKEN = {
    "a label that is not 0 or 1": ("impressions-0", with_value("click", 4, 2), r"label|click.*got 2"),
    "a surface that is not listed": ("impressions-1", with_value("surface", 4, "hoem"), r"surface.*got hoem in 1 of"),
    "a null user": ("orders", with_value("user_id", 0, None), r"user_id.*no null"),
    "a null item": ("impressions-0", with_value("item_id", 0, None), r"item_id.*no null"),
    "a null request": ("impressions-0", with_value("request_id", 0, None), r"request_id.*no null"),
    "a null time": ("views", with_value("time", 0, None), r"time.*no null"),
    "a number that is not finite": ("impressions-0", nan_price, r"price.*finite"),
    "times in another unit": (
        "views",
        with_column("time", lambda c: pc.multiply(c, 1000)),
        r"1970 to 2255 with unit s",
    ),
    "an item twice": ("items", lambda table: pa.concat_tables([table, table.slice(0, 1)]), r"item_id.*a value once"),
    "a row twice": (
        "impressions-0",
        lambda table: pa.concat_tables([table, table.slice(0, 1)]),
        r"an item once a request.*1 repeated",
    ),
    "a request of two users": ("impressions-0", None, r"user_id.*one value a request"),
    "a request on two surfaces": ("impressions-0", None, r"surface.*one value a request"),
    "a request at two times": ("impressions-0", None, r"time.*one value a request"),
    "a request in two shops": ("impressions-0", None, r"shop.*one value a request"),
}


def split_request(table, column):
    """Change a column in one row of a request of several rows."""
    requests = table["request_id"].to_pylist()
    row = next(place for place, request in enumerate(requests) if requests.count(request) > 1)
    values = table[column].to_pylist()
    other = next(value for value in values if value != values[row])
    return with_value(column, row, other)(table)


@pytest.mark.parametrize("what", BROKEN)
def test_rows_that_can_not_be_are_refused(tables, what):
    name, change, message = BROKEN[what]
    column = {"users": "user_id", "surfaces": "surface", "times": "time", "shops": "shop"}.get(
        what.rsplit(maxsplit=1)[-1]
    )
    rewritten(tables.root / f"{name}.parquet", change or (lambda table: split_request(table, column)))
    with pytest.raises(DataError, match=message):
        prepare(tables.schema, tables.root, tables.folder)
    assert not tables.folder.exists()


def test_all_problems_of_rows_are_told_at_once(tables):
    rewritten(tables.root / "impressions-0.parquet", with_value("click", 4, 2))
    rewritten(tables.root / "impressions-0.parquet", with_value("surface", 5, "hoem"))
    rewritten(tables.root / "orders.parquet", with_value("item_id", 0, None))
    with pytest.raises(DataError) as caught:
        prepare(tables.schema, tables.root, tables.folder)
    assert len(caught.value.problems) == 3


def test_declared_row_ids_must_be_unique_in_the_whole_store(tables):
    content = tables.schema.model_dump(mode="json")
    content["data"]["impressions"]["row"] = "row"
    schema = Schema.model_validate(content)
    first = 0
    for name in ("impressions-0", "impressions-1"):
        path = tables.root / f"{name}.parquet"
        num_rows = pq.read_metadata(path).num_rows
        rewritten(
            path, lambda table, first=first, n=num_rows: table.append_column("row", pa.array(range(first, first + n)))
        )
        first += num_rows
    rewritten(path, with_value("row", 0, 0))
    with pytest.raises(DataError, match="a row id once; got 1 ids in more than one row, 0 for instance"):
        prepare(schema, tables.root, tables.folder)
    rewritten(path, with_value("row", 0, first))
    assert prepare(schema, tables.root, tables.folder).num_rows == first


def test_unsigned_ids_beyond_int64_are_read_by_their_bits(tables):
    unsigned = with_column(
        "user_id", lambda column: pc.add(column.cast(pa.uint64()), pa.scalar(2**64 - 100, pa.uint64()))
    )
    for path in tables.root.glob("*.parquet"):
        if "user_id" in pq.read_schema(path).names:
            rewritten(path, unsigned)
    prepare(tables.schema, tables.root, tables.folder)
    users = pa.ipc.open_file(pa.memory_map(str(tables.folder / "users.arrow"))).read_all()["user"].to_pylist()
    assert users == list(range(-100, -60))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_time_is_microseconds_whatever_the_unit_and_zone(log, tables, unit):
    zoned = with_column("time", lambda column: column.cast(pa.timestamp(unit, "Asia/Kolkata")))
    for path in sorted(tables.root.glob("impressions*.parquet")):
        rewritten(path, zoned)
    assert prepare(tables.schema, tables.root, tables.folder).fingerprint == log.store.fingerprint


def test_missing_parts_of_a_project_are_all_told(tables):
    (tables.root / "views.parquet").unlink()
    rewritten(tables.root / "items.parquet", lambda table: table.rename_columns(["item_id", "brnad"]))
    rewritten(tables.root / "orders.parquet", lambda table: table.slice(0, 0))
    with pytest.raises(DataError) as caught:
        prepare(tables.schema, tables.root, tables.folder)
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "no file fits 'views.parquet'" in text
    assert "Did you mean 'brnad'?" in text
    assert "orders.parquet: expected at least one row" in text
    assert Path(tables.root / "items.parquet").name in text
