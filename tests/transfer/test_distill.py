"""Students and twins: what distillation may and may not touch, and what is refused."""

import dataclasses
import shutil

import numpy as np
import orjson
import pytest
import torch
from safetensors.numpy import load_file

from foundation.data.reader import Reader
from foundation.data.store import Store
from foundation.model.inputs import to_tensors
from foundation.parallel.world import joined_world
from foundation.soft_labels import NOTHING_LEARNED, SoftLabelWriter, read_soft_labels
from foundation.training.visits import Visits
from serving.errors import MismatchError, UserError
from transfer import distill
from transfer.distill import RESULT_FILE, WEIGHTS_FILE, build_student, finished_student, train_student
from transfer.export import served_student
from transfer.losses import distillation_loss

DAY_US = 86_400_000_000


@pytest.fixture
def job_of(tiny, tmp_path):
    """(arm, settings of the channel) → the search placement's job in a folder of the test's own."""

    def make(arm="student", *, folder="student", student=(), **channel):
        job = tiny.space().student_job("search_conversion", 0, arm)
        soft_labels = job.placement.transfer.soft_labels.model_copy(update=channel)
        placement = job.placement.model_copy(
            update={
                "transfer": job.placement.transfer.model_copy(update={"soft_labels": soft_labels}),
                "student": job.placement.student.model_copy(update=dict(student)),
            }
        )
        return dataclasses.replace(job, placement=placement, folder=tmp_path / folder)

    return make


@pytest.fixture
def known(tiny):
    """The soft labels that training left."""
    job = tiny.space().student_job("search_conversion", 0, "student")
    store = Store.open(job.store, job.schema)
    stamps = {"data_fingerprint": store.fingerprint, "schema_digest": job.schema.schema_digest()}
    return read_soft_labels(job.soft_labels, **stamps), stamps


def write_labels(folder, known, *, rows=slice(None), cutoffs=None, logits=None, **stamps):
    labels, made = known
    writer = SoftLabelWriter(folder, labels.manifest.objectives)
    written = labels.logits if logits is None else logits
    writer.add(labels.row_ids[rows], (labels.cutoffs_us if cutoffs is None else cutoffs)[rows], written[rows])
    writer.publish(teacher=labels.manifest.teacher, **(made | stamps))
    return folder


def weights_of(job):
    return load_file(job.folder / WEIGHTS_FILE)


def served_part(weights):
    return {name: array for name, array in weights.items() if not name.startswith("auxiliary.")}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def a_batch(job):
    store = Store.open(job.store, job.schema)
    limits = dict.fromkeys(job.schema.data.events, 8)
    with Reader(store, job.schema, store.select(surfaces=("search",)), 8, history_limits=limits) as reader:
        return next(iter(reader))


@pytest.mark.parametrize("gradient_scale", [0.0, 3.0])
def test_distillation_sends_no_gradient_into_the_serving_head(job_of, gradient_scale):
    job = job_of(gradient_scale=gradient_scale)
    with joined_world(1) as world:
        model = build_student(job, world, Store.open(job.store, job.schema)).sharded.model
        _, auxiliary = model.of_batch(to_tensors(a_batch(job), world.device))
        named = {name: p for name, p in model.named_parameters() if ".collection." not in name}
        loss = distillation_loss(auxiliary, torch.zeros_like(auxiliary), label_scale=1.0)
        found = dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True))
    reached = {name: grad is not None and bool((grad != 0).any()) for name, grad in found.items()}
    assert [found[name] for name in reached if "network.head" in name] == [None, None]
    assert all(reached[name] for name in reached if "auxiliary.2" in name)
    assert any(reached[name] for name in reached if "half" in name) == (gradient_scale > 0)


@pytest.mark.parametrize("channel", [{"weight": 0.0}, {"gradient_scale": 0.0}, {"gradient_scale": 0.0, "weight": 7.0}])
def test_without_its_gradient_the_student_is_its_twin_bit_for_bit(tiny, job_of, channel):
    job = job_of(**channel)
    train_student(job)
    mine, twins = weights_of(job), weights_of(tiny.space().student_job("search_conversion", 0, "twin"))
    assert any(name.startswith("auxiliary.") for name in mine)
    assert same(served_part(mine), twins)


def test_with_it_the_student_is_another(tiny):
    space = tiny.space()
    mine, twins = (weights_of(space.student_job("search_conversion", 0, arm)) for arm in ("student", "twin"))
    assert not same(served_part(mine), twins)


def test_a_twin_reads_no_soft_labels(job_of, tiny, tmp_path):
    job = dataclasses.replace(job_of("twin"), soft_labels=tmp_path / "nowhere")
    assert train_student(job).soft_label_coverage == 0
    assert same(weights_of(job), weights_of(tiny.space().student_job("search_conversion", 0, "twin")))


def test_soft_labels_are_joined_by_row_not_by_order(job_of, tiny, known, tmp_path):
    backwards = write_labels(tmp_path / "labels", known, rows=slice(None, None, -1))
    job = dataclasses.replace(job_of(), soft_labels=backwards)
    train_student(job)
    assert same(weights_of(job), weights_of(tiny.space().student_job("search_conversion", 0, "student")))


def test_every_training_row_had_a_soft_label(tiny):
    space = tiny.space()
    job = space.student_job("search_conversion", 0, "student")
    store = Store.open(job.store, job.schema)
    result = finished_student(job, store)
    assert result.soft_label_coverage == 1
    ends = (job.until_us, job.until_us - DAY_US + 1)  # of first visits, and of those whose conversions are known
    assert result.num_steps == sum(-(-len(store.select(surfaces=("search",), end=end)) // 16) for end in ends)
    assert np.isfinite([result.label_loss, result.distillation_loss]).all()


def test_half_the_soft_labels_are_half_the_coverage(job_of, known, tmp_path):
    job = dataclasses.replace(job_of(), soft_labels=write_labels(tmp_path / "labels", known, rows=slice(None, None, 2)))
    assert 0.4 < train_student(job).soft_label_coverage < 0.6


def test_a_teacher_that_has_seen_the_rows_is_refused(job_of, known, tmp_path):
    late = np.full(len(known[0].row_ids), 2**60)
    job = dataclasses.replace(job_of(), soft_labels=write_labels(tmp_path / "labels", known, cutoffs=late))
    with pytest.raises(MismatchError, match="cutoff"):
        train_student(job)
    assert not (job.folder / WEIGHTS_FILE).exists()


@pytest.mark.parametrize("stamp", ["data_fingerprint", "schema_digest"])
def test_soft_labels_of_other_data_or_another_schema_are_refused(job_of, known, tmp_path, stamp):
    foreign = write_labels(tmp_path / "labels", known, **{stamp: "0" * 64})
    with pytest.raises(MismatchError, match=stamp):
        train_student(dataclasses.replace(job_of(), soft_labels=foreign))


def test_a_teacher_of_other_rows_is_an_error_not_a_result(job_of, known, tmp_path):
    nothing = write_labels(tmp_path / "labels", known, rows=slice(0, 0))
    job = dataclasses.replace(job_of(), soft_labels=nothing)
    with pytest.raises(UserError, match=r"placement search_conversion.*rows with a soft label"):
        train_student(job)
    assert not (job.folder / RESULT_FILE).exists()


def test_a_teacher_without_the_placements_objectives_is_an_error_too(job_of, known, tmp_path):
    logits = known[0].logits.copy()
    logits[:, [0, 2]] = np.nan  # click and conversion; the long views stay
    job = dataclasses.replace(job_of(), soft_labels=write_labels(tmp_path / "labels", known, logits=logits))
    with pytest.raises(UserError, match="rows with a soft label"):
        train_student(job)


def test_a_student_that_diverged_is_an_error_not_a_result(job_of):
    job = job_of("twin", student={"dense_learning_rate": 1e36})
    with pytest.raises(UserError, match="dense_learning_rate"):
        train_student(job)
    assert not (job.folder / RESULT_FILE).exists()


def test_a_finished_job_is_not_done_again(job_of, monkeypatch):
    job = job_of()
    first = train_student(job)
    before = {path: path.stat().st_mtime_ns for path in job.folder.rglob("*")}
    monkeypatch.setattr(distill, "build_student", None)  # calling it would raise
    assert train_student(job) == first
    assert {path: path.stat().st_mtime_ns for path in job.folder.rglob("*")} == before


@pytest.mark.parametrize("what", ["settings", "teacher", "damage"])
def test_a_job_is_done_again_when_anything_that_decides_it_has_changed(job_of, known, tmp_path, tiny, what):
    job = job_of()
    first = train_student(job)
    if what == "settings":
        changed = job_of(student={"width": 8})
    elif what == "teacher":
        labels = write_labels(tmp_path / "labels", known, logits=known[0].logits + 1)
        changed = dataclasses.replace(job, soft_labels=labels)
    else:
        changed = job
        (job.folder / WEIGHTS_FILE).write_bytes(b"")
    store = Store.open(job.store, job.schema)
    assert finished_student(changed, store) is None
    with pytest.raises(MismatchError, match="gemcut distill --placement search_conversion"):
        served_student(changed, store)
    second = train_student(changed)
    assert (second.weights_digest == first.weights_digest) == (what == "damage")
    assert served_student(changed, store) is not None


def without_a_field(result):
    return {name: value for name, value in result.items() if name != "teacher"}


@pytest.mark.parametrize(
    "change", [without_a_field, lambda result: result | {"later": 1}, lambda _: [1], lambda _: None], ids=range(4)
)
def test_a_result_of_another_version_counts_as_not_done(tiny, tmp_path, change):
    kept = tiny.space().student_job("search_conversion", 0, "student")
    job = dataclasses.replace(kept, folder=shutil.copytree(kept.folder, tmp_path / "student"))
    store, file = Store.open(job.store, job.schema), job.folder / RESULT_FILE
    result = orjson.loads(file.read_bytes())
    assert finished_student(job, store) is not None
    file.write_bytes(orjson.dumps(change(result)))
    assert finished_student(job, store) is None
    file.write_bytes(orjson.dumps(result)[:-1])
    assert finished_student(job, store) is None


def test_what_other_settings_left_is_gone_before_the_new_student_is_there(job_of, known, tmp_path):
    train_student(job_of())
    leaking = write_labels(tmp_path / "labels", known, cutoffs=np.full(len(known[0].row_ids), 2**60))
    job = dataclasses.replace(job_of(), soft_labels=leaking)
    with pytest.raises(MismatchError):
        train_student(job)
    assert sorted(path.name for path in job.folder.iterdir()) == ["checkpoints"]


class StoppedError(Exception):
    pass


def test_stopped_and_run_again_a_student_is_the_one_that_was_never_stopped(job_of, tiny, monkeypatch):
    monkeypatch.setattr(distill, "CHECKPOINT_STEPS", 2)
    job = job_of()

    def stop_at_the_third(fraction, words, seen=[]):  # noqa: B006 (the memory is the point)
        seen.append(words)
        if len(seen) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_student(job, stop_at_the_third)
    assert [path.name for path in (job.folder / "checkpoints").iterdir()] == ["step-00000002"]
    resumed = train_student(job)
    space = tiny.space()
    never_stopped = orjson.loads((space.student("search_conversion", 0, "student") / RESULT_FILE).read_bytes())
    told = dataclasses.asdict(resumed) | {"seconds": None}
    assert told == never_stopped | {"seconds": None}


def unlabelled(visits):
    """The same visits, every label unknown."""
    return lambda self: (
        dataclasses.replace(visit, labels=np.full_like(visit.labels, np.nan)) for visit in visits(self)
    )


def test_unknown_labels_still_distil(job_of, known, tmp_path, monkeypatch):
    monkeypatch.setattr(Visits, "__iter__", unlabelled(Visits.__iter__))
    job = job_of()
    result = train_student(job)
    assert result.label_loss == 0
    assert result.distillation_loss > 0
    assert result.soft_label_coverage == 1


def test_a_score_from_before_any_learning_is_no_leak(job_of, known, tmp_path):
    cutoffs = np.full(len(known[0].row_ids), NOTHING_LEARNED)
    job = dataclasses.replace(job_of(), soft_labels=write_labels(tmp_path / "labels", known, cutoffs=cutoffs))
    assert train_student(job).soft_label_coverage == 1
    shutil.rmtree(job.folder)
