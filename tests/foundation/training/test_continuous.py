"""A day's training and then the next day's, with a log and lists of values that have grown, is one training of both."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.parallel.world import joined_world
from foundation.soft_labels import check_soft_labels, read_soft_labels
from foundation.training.checkpoint import list_checkpoints, load_checkpoint, read_manifest
from foundation.training.foundation_model import (
    build_trainer,
    checkpoint_at_cut,
    growth,
    run_identity,
    train_foundation,
)
from serving.errors import MismatchError
from tests.foundation.training.conftest import tensors_of
from tests.foundation.training.stopping import train_and_stop
from transfer.label import LabelJob, label

DAY_US = 86_400_000_000
HOURS = 12
"""So many of the day's hours the schema of the first day knows; the second day's knows all 24."""


def time_of(table):
    return pc.cast(pc.cast(table["time"], pa.timestamp("us")), pa.int64())


@pytest.fixture(scope="session")
def first_day(tmp_path_factory, log):
    """The log as it was at the cut: nothing later, and no label that was not ripe."""
    root = tmp_path_factory.mktemp("first_day")
    shutil.copytree(log.folder.parent / "data", root / "data")
    for name in ("impressions", "events"):
        table = pq.read_table(root / "data" / f"{name}.parquet")
        table = table.filter(pc.less(time_of(table), log.until_us))
        if name == "impressions":
            ripe = pc.less_equal(time_of(table), log.until_us - DAY_US)
            labels = pc.if_else(ripe, table["conversion"], pa.scalar(None, table["conversion"].type))
            table = table.set_column(table.column_names.index("conversion"), "conversion", labels)
        pq.write_table(table, root / "data" / f"{name}.parquet")
    prepare(log.schema, root, root / "store", threads=1)
    return SimpleNamespace(folder=root / "store", store=Store.open(root / "store", log.schema))


@pytest.fixture(scope="session")
def days_of(log, first_day, job_of):
    """(folder, settings) → (the job of the first day to the cut, the job of the next to the end of the log)."""

    def make(folder, **changed):
        end = log.store.manifest.last_time + 1
        job = job_of(folder, cut_us=log.until_us, **changed)
        return replace(job, store=first_day.folder), replace(job, until_us=end)

    return make


@pytest.fixture(scope="module")
def in_one_go(tmp_path_factory, days_of):
    """The folder of a run over both days; not to be changed."""
    folder = tmp_path_factory.mktemp("in_one_go")
    train_foundation(days_of(folder)[1])
    return folder


@pytest.fixture(scope="module")
def one_day(tmp_path_factory, days_of):
    """The folder of the first day's run; not to be changed."""
    folder = tmp_path_factory.mktemp("one_day")
    train_foundation(days_of(folder)[0])
    return folder


@pytest.fixture
def begun(tmp_path, one_day):
    return shutil.copytree(one_day, tmp_path / "run")


def fewer_hours(schema):
    hours = schema.tables["hour"].model_copy(update={"values": tuple(range(HOURS))})
    return schema.model_copy(update={"tables": schema.tables | {"hour": hours}})


def state_of(folder):
    return orjson.loads((list_checkpoints(folder / "checkpoints")[-1] / "state.json").read_bytes())


def labels_of(folder, name, log):
    stamps = {"data_fingerprint": log.store.fingerprint, "schema_digest": log.schema.schema_digest()}
    labels = read_soft_labels(folder / name, **stamps)
    return labels.row_ids.tolist(), labels.cutoffs_us.tolist(), labels.logits.tobytes()


@pytest.mark.parametrize("stops", [(), (3,), (5, 2)])
def test_day_by_day_is_in_one_go(begun, in_one_go, days_of, log, first_day, stops):
    assert first_day.store.manifest.num_requests < log.store.manifest.num_requests
    _, next_day = days_of(begun)
    before = state_of(begun)
    for num_steps in stops:
        train_and_stop(next_day, num_steps)
    report = train_foundation(next_day)
    assert report.stream.num_steps > 26 == read_manifest(list_checkpoints(begun / "checkpoints")[0]).step
    newest = [list_checkpoints(folder / "checkpoints")[-1] for folder in (begun, in_one_go)]
    assert tensors_of(newest[0]) == tensors_of(newest[1])
    after, expected = state_of(begun), state_of(in_one_go)
    assert after["visits"] == expected["visits"]
    for name in ("soft_labels", "soft_labels_from_cut"):
        assert labels_of(begun, name, log) == labels_of(in_one_go, name, log)
        assert read_manifest_of(begun, name) == read_manifest_of(in_one_go, name)
    streams = after["recorder"]["streams"], expected["recorder"]["streams"]
    for objective in ("click", "long_view"):
        assert streams[0]["before_cut"][objective] == streams[1]["before_cut"][objective]
    assert streams[0]["from_cut"] == streams[1]["from_cut"]
    assert streams[0]["before_cut"]["conversion"] == before["recorder"]["streams"]["before_cut"]["conversion"]


def read_manifest_of(folder, name):
    return orjson.loads((folder / name / "manifest.json").read_bytes())["teacher"]


def test_late_labels_that_became_ripe_since_are_learned_once(one_day, in_one_go, log):
    was, now = (state_of(folder)["visits"][str(DAY_US)]["next"] for folder in (one_day, in_one_go))
    assert was == len(log.store.select(end=log.until_us - DAY_US + 1))
    assert now == len(log.store.select(end=log.store.manifest.last_time + 2 - DAY_US)) > was


def test_a_cut_that_moved_on_takes_the_rows_before_it_along(begun, in_one_go, days_of, log):
    """The same model and the same scores; only on which side of the cut they lie is another."""
    _, next_day = days_of(begun)
    moved = replace(next_day, cut_us=next_day.until_us)
    train_foundation(moved)
    newest = [list_checkpoints(folder / "checkpoints")[-1] for folder in (begun, in_one_go)]
    assert tensors_of(newest[0]) == tensors_of(newest[1])
    assert checkpoint_at_cut(moved) == newest[0]
    assert not list(begun.glob("soft_labels_from_cut/part*"))
    rows, cutoffs, _ = labels_of(begun, "soft_labels", log)
    assert len(rows) == log.store.manifest.num_rows
    earlier, later = (labels_of(in_one_go, name, log) for name in ("soft_labels", "soft_labels_from_cut"))
    expected = dict(zip(earlier[0] + later[0], earlier[1] + later[1], strict=True))
    assert dict(zip(rows, cutoffs, strict=True)) == expected
    told = orjson.loads((begun / "report.json").read_bytes())
    assert told["progressive"]["click"]["num_rows"] == log.store.manifest.num_rows
    assert told["progressive_from_cut"]["click"]["num_rows"] == 0


def test_a_cut_may_move_to_where_training_has_gone_already(begun, in_one_go, days_of, log):
    """As from day to day: what was learned after the cut is before it when the cut moves on."""
    _, next_day = days_of(begun)
    half = int(log.store.times[225])
    train_foundation(replace(next_day, until_us=half))
    assert list(begun.glob("soft_labels_from_cut/part*"))
    moved = replace(next_day, cut_us=half)
    train_and_stop(moved, 1)
    report = train_foundation(moved)
    num_before = int(log.store.candidate_counts[:225].sum())
    assert report.progressive["click"].num_rows == num_before
    assert report.progressive_from_cut["click"].num_rows == log.store.manifest.num_rows - num_before
    before, after = (labels_of(begun, name, log) for name in ("soft_labels", "soft_labels_from_cut"))
    assert len(before[0]) == num_before
    assert len(after[0]) == log.store.manifest.num_rows - num_before
    assert sorted(before[0] + after[0]) == sorted(
        row for name in ("soft_labels", "soft_labels_from_cut") for row in labels_of(in_one_go, name, log)[0]
    )
    assert read_manifest(checkpoint_at_cut(moved)).step < report.stream.num_steps


@pytest.mark.parametrize("cut", [200, 210])
def test_a_cut_in_the_midst_of_what_was_learned_is_refused(in_one_go, days_of, log, cut, tmp_path):
    _, next_day = days_of(in_one_go)
    moved = replace(next_day, cut_us=int(log.store.times[cut]) + 1)
    with pytest.raises(MismatchError, match=r"split\.test_from.*to where training has gone"):
        train_foundation(moved)
    with pytest.raises(MismatchError, match=r"split\.test_from.*to where training has gone"):
        label(LabelJob(moved, tmp_path / "labels", moved.cut))


def test_without_the_next_days_training_there_is_no_teacher_for_a_cut_that_moved(begun, days_of):
    _, next_day = days_of(begun)
    moved = replace(next_day, cut_us=next_day.until_us)
    assert checkpoint_at_cut(moved) is None
    with pytest.raises(MismatchError, match="`gemcut train`, which goes on"):
        label(LabelJob(moved, begun / "labels", moved.cut))


def test_another_past_is_refused_and_nothing_is_changed(begun, days_of, other_log, snapshot):
    _, next_day = days_of(begun)
    before = vars(snapshot(begun))
    with pytest.raises(MismatchError, match="as they were learned"):
        train_foundation(replace(next_day, store=other_log.folder))
    assert vars(snapshot(begun)) == before


def test_a_log_whose_old_days_are_gone_is_refused(tmp_path, begun, days_of, log):
    root = tmp_path / "later"
    shutil.copytree(log.folder.parent / "data", root / "data")
    path = root / "data" / "impressions.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.greater_equal(time_of(table), log.until_us)), path)
    prepare(log.schema, root, root / "store", threads=1)
    with pytest.raises(MismatchError, match="Prepare all days together"):
        train_foundation(replace(days_of(begun)[1], store=root / "store"))


@pytest.fixture(scope="module")
def grown(tmp_path_factory, days_of, log):
    """(folder of a first day with fewer hours, the job of the next day with all of them); not to be changed."""
    folder = tmp_path_factory.mktemp("grown")
    first, _ = days_of(folder, schema=fewer_hours(log.schema))
    train_foundation(first)
    return folder, days_of(folder)[1]


def test_rows_that_were_there_keep_their_values_and_new_ones_are_a_new_tables(grown, log):
    folder, job = grown
    (checkpoint,) = list_checkpoints(folder / "checkpoints")[-1:]
    saved = tensors_of(checkpoint)
    added = growth(job, log.store.fingerprint)
    assert added == {"hour": 24 - HOURS}
    with joined_world(1) as world:
        tensors = build_trainer(job, world, log.store).tensors()
        fresh = {name: whole(value) for name, value in build_trainer(job, world, log.store).tensors().items()}
        for other in ({}, {"hour": 1}, {"hour": 24 - HOURS, "device": 1}):
            with pytest.raises(MismatchError, match=r"table_(hour|device)"):
                load_checkpoint(checkpoint, tensors=tensors, growth=other)
        load_checkpoint(checkpoint, tensors=tensors, growth=added)
        loaded = {name: whole(value) for name, value in tensors.items()}
    assert loaded.keys() == saved.keys()
    larger = [name for name in saved if tuple(loaded[name].shape) != saved[name][1]]
    assert len(larger) == 2, "the table and its AdaGrad state"
    for name, (_, shape, content) in saved.items():
        assert (
            loaded[name][: shape[0]].numpy().tobytes() == content
            if shape
            else loaded[name].numpy().tobytes() == content
        )
    weight, moment = sorted(larger, key=lambda name: name.startswith("table_optimizer"))
    assert moment.startswith("table_optimizer")
    rows = loaded[weight].shape[0] - (24 - HOURS)
    assert torch.equal(loaded[weight][rows:], fresh[weight][rows:])
    assert loaded[weight][rows:].std() == pytest.approx(0.05, rel=0.3)
    assert torch.count_nonzero(loaded[moment][rows:]) == 0
    assert torch.count_nonzero(loaded[moment][:rows]) > 0


def whole(value):
    value = value.local_tensor() if hasattr(value, "local_tensor") else value
    return value.detach().clone()


def test_a_training_with_more_values_goes_on_and_learns_them(tmp_path, grown, log):
    folder, job = grown
    job = replace(job, folder=shutil.copytree(folder, tmp_path / "run"))
    train_and_stop(job, 3)
    report = train_foundation(job)
    newest = list_checkpoints(job.folder / "checkpoints")[-1]
    (moment,) = [value for name, value in tensors_of(newest).items() if "table_hour" in name and "optimizer" in name]
    learned = np.frombuffer(moment[2], np.float32)[2 + HOURS :]
    assert moment[1][0] == 2 + 24
    assert (learned > 0).all(), "every hour of the second half comes"
    assert report.progressive_from_cut["click"].num_rows > 0
    assert growth(job, log.store.fingerprint) == {}
    check_soft_labels(
        job.folder / "soft_labels",
        data_fingerprint=log.store.fingerprint,
        schema_digest=job.schema.schema_digest(),
        run=run_identity(job, log.store.fingerprint).run,
    )


def test_the_teacher_at_the_cut_labels_the_log_that_has_grown(tmp_path, grown, log):
    """It has never seen the new values, so their rows are as they began."""
    folder, job = grown
    job = replace(job, folder=shutil.copytree(folder, tmp_path / "run"))
    target = tmp_path / "labels"
    num_rows = label(LabelJob(job, target, log.until_us))
    assert num_rows == int(log.store.candidate_counts[log.store.times >= log.until_us].sum())
    identity = run_identity(job, log.store.fingerprint)
    check_soft_labels(
        target,
        data_fingerprint=log.store.fingerprint,
        schema_digest=job.schema.schema_digest(),
        run=identity.run,
        checkpoint=read_manifest(checkpoint_at_cut(job)).digest,
    )


def with_buckets(schema, buckets):
    users = schema.tables["user"].model_copy(update={"buckets": buckets})
    return schema.model_copy(update={"tables": schema.tables | {"user": users}})


def with_table(schema):
    return schema.model_copy(update={"tables": schema.tables | {"more": schema.tables["user"]}})


def turned_round(schema):
    return schema.model_copy(update={"objectives": dict(reversed(schema.objectives.items()))})


def with_hours(schema, values):
    hours = schema.tables["hour"].model_copy(update={"values": values})
    return schema.model_copy(update={"tables": schema.tables | {"hour": hours}})


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda schema: with_hours(schema, tuple(range(HOURS))[1:]), "tables.hour.values"),
        (lambda schema: with_hours(schema, tuple(range(HOURS - 1))), "tables.hour.values"),
        (lambda schema: with_hours(schema, (99, *range(HOURS))), "tables.hour.values"),
        (lambda schema: with_hours(schema, (*range(HOURS - 1), 99, HOURS - 1)), "tables.hour.values"),
        (lambda schema: with_buckets(schema, 501), "tables.user"),
        (with_table, "tables.more"),
        (turned_round, "objectives, their order"),
    ],
)
def test_a_schema_that_differs_otherwise_is_refused_by_what_changed(tmp_path, grown, log, change, path):
    folder, job = grown
    job = replace(job, folder=shutil.copytree(folder, tmp_path / "run"), schema=change(fewer_hours(log.schema)))
    with pytest.raises(MismatchError) as caught:
        growth(job, log.store.fingerprint)
    assert [problem.where.partition(": ")[2] for problem in caught.value.problems] == [path]


def test_a_schema_is_another_one_where_the_order_of_columns_is(log):
    """Heads and their labels are told apart by their place."""
    schema = Schema.model_validate(log.schema.model_dump())
    assert turned_round(schema).schema_digest() != schema.schema_digest()


@pytest.mark.distributed
@pytest.mark.parametrize("num_ranks", [(2, 1), (1, 2)])
def test_tables_grow_on_any_number_of_ranks(tmp_path, days_of, run_job, log, num_ranks):
    first, next_day = days_of(tmp_path, schema=fewer_hours(log.schema))[0], days_of(tmp_path)[1]
    for job, ranks in zip((first, next_day), num_ranks, strict=True):
        for rank in run_job(job, ranks):
            assert rank.returncode == 0, rank.errors
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    assert state_of(tmp_path)["visits"]["0"]["next"] == log.store.manifest.num_requests
    with joined_world(1) as world:
        tensors = build_trainer(next_day, world, log.store).tensors()
        load_checkpoint(newest, tensors=tensors)
        moments = [whole(value) for name, value in tensors.items() if "table_hour" in name and "optimizer" in name]
    assert len(moments) == 1
    assert len(moments[0]) == 2 + 24
    assert torch.all(moments[0][2:] > 0), "every hour was learned, of both days"
