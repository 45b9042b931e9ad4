"""A project day by day: more files, late labels, a list of values that grew, a cut that moved on, one training."""

import json
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from foundation.data.store import Store, microseconds, read_manifest
from foundation.soft_labels import read_soft_labels
from gemcut.commands.prepare import prepare
from gemcut.commands.train import train
from gemcut.console import Screen
from tests.conftest import TINY_PROJECT, Tiny
from transfer.distill import student_identity

DAY_US = 86_400_000_000
FIRST_CUT, SECOND_CUT, END = "2024-02-11T00:00:00", "2024-02-18T00:00:00", "2030-01-01T00:00:00"
PLACEMENT = "related_click"


def at(moment):
    return microseconds(datetime.fromisoformat(moment))


def time_of(table):
    return pc.cast(pc.cast(table["time"], pa.timestamp("us")), pa.int64())


def during(table, start, end):
    return table.filter(pc.and_(pc.greater_equal(time_of(table), at(start)), pc.less(time_of(table), at(end))))


def write_day(root, tables, *, start, end, known, name):
    """The impressions of a period, with labels that were ripe at a moment."""
    shown = during(tables["impressions"], start, end)
    ripe = pc.less_equal(time_of(shown), at(known) - DAY_US)
    labels = pc.if_else(ripe, shown["conversion"], pa.scalar(None, shown["conversion"].type))
    shown = shown.set_column(shown.column_names.index("conversion"), "conversion", labels)
    pq.write_table(shown, root / "data" / f"impressions-{name}.parquet")


def write_project(root, *, cut, devices):
    text = TINY_PROJECT.replace("data/impressions.parquet", "data/impressions-*.parquet").replace(SECOND_CUT, cut)
    (root / "project.yaml").write_text(text.replace("[desktop, mobile, tablet]", f"[{', '.join(devices)}]"))
    return Tiny(root / "project.yaml")


@pytest.fixture(scope="module")
def tables(tiny_logs):
    return {name: pq.read_table(tiny_logs.root / "data" / f"{name}.parquet") for name in ("impressions", "events")}


@pytest.fixture(scope="module")
def first_day(tmp_path_factory, tables, tiny_logs):
    """The project trained to the second cut, of which it is before. Not to be changed."""
    root = tmp_path_factory.mktemp("first_day") / "tiny"
    (root / "data").mkdir(parents=True)
    for name in ("items", "users"):
        (root / "data" / f"{name}.parquet").write_bytes((tiny_logs.root / "data" / f"{name}.parquet").read_bytes())
    write_day(root, tables, start="2020-01-01", end=SECOND_CUT, known=SECOND_CUT, name="first")
    pq.write_table(during(tables["events"], "2020-01-01", SECOND_CUT), root / "data" / "events.parquet")
    project = write_project(root, cut=FIRST_CUT, devices=("desktop", "mobile"))
    loaded, screen = project.load(), Screen()
    prepare(loaded, screen)
    train(loaded, screen, until=SECOND_CUT)
    return project


def next_day(project, tables):
    """What came since: impressions in a file of their own, ripe labels of the earlier ones, a longer log of events."""
    write_day(project.root, tables, start="2020-01-01", end=SECOND_CUT, known=END, name="first")
    write_day(project.root, tables, start=SECOND_CUT, end=END, known=END, name="second")
    pq.write_table(tables["events"], project.root / "data" / "events.parquet")
    return write_project(project.root, cut=SECOND_CUT, devices=("desktop", "mobile", "tablet"))


def labels_of(space, folder):
    digests = {"data_fingerprint": read_manifest(space.store).fingerprint}
    return read_soft_labels(folder, schema_digest=space.loaded.project.schema_digest(), **digests)


def student_of(space):
    """What a result must say of itself to be taken for this student's."""
    job = space.student_job(PLACEMENT, 0, "student")
    return student_identity(job, Store.open(space.store, space.loaded.project))


def test_two_days_of_a_project(first_day, tables, tmp_path, gemcut):
    project = first_day.copy(tmp_path / "tiny")
    space = project.space()
    folders = (space.progressive_labels, space.foundation / "soft_labels_from_cut")
    before = [labels_of(space, folder) for folder in folders]
    students = [student_of(space)]

    project = next_day(project, tables)
    space = project.space()
    assert gemcut("prepare", "-p", project.path)[0] in (0, None)
    code, _, said = gemcut("distill", "-p", project.path, "--placement", PLACEMENT)
    assert code == 3, "labels of the day before are not those of a log that has grown, before the teacher has seen it"
    assert "gemcut train" in said

    code, out, said = gemcut("train", "-p", project.path, "--until", "end", "--json")
    assert code in (0, None)
    assert "table device: 1 new value" in said
    told = json.loads(out.splitlines()[-1])
    after = [labels_of(space, folder) for folder in folders]
    num_rows = [told[name]["click"]["num_rows"] for name in ("progressive", "progressive_from_cut")]
    assert num_rows == [len(labels.row_ids) for labels in after]
    assert sum(num_rows) == read_manifest(space.store).num_rows
    rows = [row for labels in before for row in labels.row_ids.tolist()]
    assert sorted(rows) == after[0].row_ids.tolist()
    for labels in before:
        places = np.searchsorted(after[0].row_ids, labels.row_ids)
        np.testing.assert_array_equal(after[0].logits[places], labels.logits)
        np.testing.assert_array_equal(after[0].cutoffs_us[places], labels.cutoffs_us)

    for command in (("label",), ("distill", "--placement", PLACEMENT), ("export", "--placement", PLACEMENT)):
        assert gemcut(*command, "-p", project.path)[0] in (0, None), command
    students.append(student_of(space))
    assert students[0] != students[1], "what was made of the day before is not taken for this day's"
    code, out, _ = gemcut("evaluate", "-p", project.path, "--placement", PLACEMENT, "--json")
    assert code in (0, None)
    assert json.loads(out.splitlines()[-1])["placements"]


def test_a_click_that_changed_since_is_refused_in_words(first_day, tables, tmp_path, gemcut):
    shown = tables["impressions"]
    clicks = shown["click"].to_numpy().copy()
    clicks[0] = 1 - clicks[0]
    changed = shown.set_column(shown.column_names.index("click"), "click", pa.array(clicks, shown["click"].type))
    project = next_day(first_day.copy(tmp_path / "tiny"), tables | {"impressions": changed})
    assert gemcut("prepare", "-p", project.path)[0] in (0, None)
    code, _, said = gemcut("train", "-p", project.path)
    assert code == 3
    flat = " ".join(said.split())
    assert "other labels of `click`, which had been learned" in flat
    assert "The past may not change." in flat
