"""Training on a small log: what it leaves, and that stopping it changes nothing."""

import json
import shutil
import signal
import time
from collections import Counter
from datetime import timedelta
from itertools import islice

import numpy as np
import orjson
import pytest
import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor

from foundation.data.reader import Reader
from foundation.goodput.journal import read_journal
from foundation.goodput.report import goodput_of
from foundation.model.inputs import to_tensors
from foundation.parallel.gather import own_copy
from foundation.parallel.world import joined_world
from foundation.soft_labels import NOTHING_LEARNED, read_soft_labels
from foundation.training.checkpoint import Identity, list_checkpoints, load_checkpoint, set_aside_damaged
from foundation.training.foundation_model import (
    JOURNAL_FILE,
    build_trainer,
    run_identity,
    train_foundation,
    visits_of,
)
from foundation.training.loss import masked_cross_entropy
from foundation.training.preemption import PREEMPTED, termination_asked
from foundation.training.saver import CheckpointPolicy, Saver
from serving.errors import DamagedError, MismatchError, UserError
from tests.foundation.training.stopping import train_and_stop

IDENTITY = Identity(run="run", schema_digest="schema", data_fingerprint="data")


def train(job):
    return train_foundation(job)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory, job_of):
    """The folder of a run of 26 steps, 13 of them first visits; not to be changed."""
    folder = tmp_path_factory.mktemp("never_stopped")
    report = train(job_of(folder))
    assert report.stream.num_steps == 26
    return folder


@pytest.fixture
def copied(tmp_path, never_stopped):
    """A finished run that a test may damage."""
    return shutil.copytree(never_stopped, tmp_path / "copied")


def soft_labels_of(folder, log, job):
    identity = run_identity(job, log.store.fingerprint)
    return read_soft_labels(
        folder / "soft_labels",
        data_fingerprint=log.store.fingerprint,
        schema_digest=log.schema.schema_digest(),
        run=identity.run,
    )


def batches(log, job):
    positions = log.store.select(end=job.until_us)
    with Reader(log.store, log.schema, positions, job.config.training.batch_requests) as reader:
        return list(reader)


def test_every_training_row_is_scored_exactly_once(never_stopped, log, job_of):
    job = job_of(never_stopped)
    expected = np.concatenate([batch.row_ids for batch in batches(log, job)])
    labels = soft_labels_of(never_stopped, log, job)
    assert Counter(labels.row_ids.tolist()) == Counter(expected.tolist())
    assert labels.manifest.teacher.checkpoint is None


def test_a_cutoff_is_the_newest_request_learned_from_before_the_row_was_scored(never_stopped, log, job_of):
    job = job_of(never_stopped)
    labels = soft_labels_of(never_stopped, log, job)
    cutoff_of = dict(zip(labels.row_ids.tolist(), labels.cutoffs_us.tolist(), strict=True))
    learned_to = NOTHING_LEARNED
    for batch in batches(log, job):
        assert {cutoff_of[row] for row in batch.row_ids.tolist()} == {learned_to}
        learned_to = int(batch.times.max())


def test_scores_are_those_of_a_model_that_learned_the_earlier_batches_only(never_stopped, log, job_of):
    job = job_of(never_stopped)
    labels = soft_labels_of(never_stopped, log, job)
    weights = torch.tensor([objective.weight for objective in log.schema.objectives.values()])
    with joined_world(1) as world:
        trainer = build_trainer(job, world, log.store)
        with visits_of(job, log.store, world) as visits:
            for step, visit in enumerate(islice(visits, 9)):
                tensors = to_tensors(visit.batch, world.device)
                fresh = trainer.score(tensors).numpy()
                if visit.is_first:
                    recorded = labels.of_rows(visit.batch.row_ids, np.full(visit.batch.num_candidates, 2**62))
                    np.testing.assert_array_equal(recorded, fresh, strict=True)
                known = torch.from_numpy(visit.labels)
                trainer.slow_down((1 + step / job.config.training.decay_steps) ** -0.5)
                prepared = trainer.prepare(tensors)
                trainer.step(prepared, lambda out, known=known: masked_cross_entropy(out, known, weights))
                assert not np.array_equal(trainer.score(tensors).numpy(), fresh, equal_nan=True)


def test_progressive_metrics_are_those_of_the_soft_labels(never_stopped, log, job_of):
    job = job_of(never_stopped)
    labels = soft_labels_of(never_stopped, log, job)
    progressive = orjson.loads((never_stopped / "report.json").read_bytes())["progressive"]
    read = batches(log, job)
    for place, objective in enumerate(log.schema.objectives):
        y = np.concatenate([batch.labels[:, place] for batch in read]).astype(np.float64)
        logits = np.concatenate([labels.of_rows(b.row_ids, np.full(b.num_candidates, 2**62))[:, place] for b in read])
        known = np.isfinite(y) & np.isfinite(logits)
        y, z = y[known], logits[known].astype(np.float64)
        expected = np.mean(np.log1p(np.exp(-z)) + (1 - y) * z)
        assert progressive[objective]["num_rows"] == known.sum() > 0
        assert progressive[objective]["num_positives"] == y.sum()
        assert progressive[objective]["log_loss"] == pytest.approx(expected, rel=1e-9)


def test_a_masked_objective_is_judged_where_its_condition_is_met(tmp_path, log, job_of):
    masked = log.schema.objectives["long_view"].model_copy(update={"given": "click", "conditional": "masked"})
    schema = log.schema.model_copy(update={"objectives": log.schema.objectives | {"long_view": masked}})
    report = train(job_of(tmp_path, schema=schema))
    labels = np.concatenate([batch.labels for batch in batches(log, job_of(tmp_path))])
    click, view = (list(log.schema.objectives).index(name) for name in ("click", "long_view"))
    assert report.progressive["long_view"].num_rows == (labels[:, click] == 1).sum()
    assert report.progressive["long_view"].num_positives == labels[labels[:, click] == 1, view].sum()


def test_rows_have_no_score_exactly_where_the_surface_has_no_such_objective(never_stopped, log, job_of):
    job = job_of(never_stopped)
    labels = soft_labels_of(never_stopped, log, job)
    heads = set(log.schema.heads())
    for batch in batches(log, job):
        logits = labels.of_rows(batch.row_ids, np.full(batch.num_candidates, 2**62))
        surfaces = np.repeat(batch.surfaces, np.diff(batch.candidate_offsets))
        exists = [[(log.schema.surfaces[s], name) in heads for name in log.schema.objectives] for s in surfaces]
        np.testing.assert_array_equal(np.isfinite(logits), exists)


def test_the_same_command_twice_makes_the_same_bytes(tmp_path, never_stopped, job_of, snapshot):
    train(job_of(tmp_path))
    assert vars(snapshot(tmp_path)) == vars(snapshot(never_stopped))


def test_another_seed_makes_another_model(tmp_path, never_stopped, job_of, snapshot):
    train(job_of(tmp_path, seed=4))
    one, other = snapshot(tmp_path), snapshot(never_stopped)
    assert one.soft_labels.keys() == other.soft_labels.keys()
    assert all(one.soft_labels[name] != other.soft_labels[name] for name in one.soft_labels)
    assert one.tensors.keys() == other.tensors.keys()


def test_learned_uncertainties_are_part_of_the_model_and_its_checkpoints(tmp_path, never_stopped, job_of, snapshot):
    whole, stopped = job_of(tmp_path / "whole", weighting="uncertainty"), job_of(tmp_path, weighting="uncertainty")
    train(whole)
    train_and_stop(stopped, 6)
    train(stopped)
    assert vars(snapshot(tmp_path)) == vars(snapshot(tmp_path / "whole"))
    added = snapshot(tmp_path).tensors.keys() - snapshot(never_stopped).tensors.keys()
    (name,) = (name for name in added if name.startswith("model."))
    uncertainties = np.frombuffer(snapshot(tmp_path).tensors[name][2], dtype=np.float32)
    assert len(uncertainties) == 3
    assert np.all(uncertainties != 0)
    parameter = name.removeprefix("model.")
    assert added == {name, f"average.{parameter}"} | {
        f"dense_optimizer.{parameter}.{part}" for part in ("step", "exp_avg", "exp_avg_sq")
    }


@pytest.mark.parametrize("stops", [(2,), (4,), (6,), (6, 1, 5)])
def test_stopped_and_resumed_is_never_stopped(tmp_path, never_stopped, job_of, snapshot, stops):
    job = job_of(tmp_path)
    for num_steps in stops:
        train_and_stop(job, num_steps)
        assert not (tmp_path / "soft_labels" / "manifest.json").exists()
    train(job)
    assert vars(snapshot(tmp_path)) == vars(snapshot(never_stopped))


@pytest.mark.parametrize("moment", ["after step 6", "before step-00000008 is committed"])
def test_killed_and_run_again_is_never_stopped(tmp_path, never_stopped, job_of, run_job, snapshot, moment):
    job = job_of(tmp_path)
    (killed,) = run_job(job, moment=moment)
    assert killed.returncode == -signal.SIGKILL, killed.errors
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000004"]
    report = train(job)
    assert report.stream.resumed_at_step == 4
    assert vars(snapshot(tmp_path)) == vars(snapshot(never_stopped))


def test_asked_to_leave_it_finishes_the_step_saves_and_goes_on_from_there(
    tmp_path, never_stopped, job_of, run_job, snapshot
):
    job = job_of(tmp_path)
    (asked,) = run_job(job, moment="asked after step 6")
    assert asked.returncode == PREEMPTED, asked.errors
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-00000004", "step-00000007"]
    assert train(job).stream.resumed_at_step == 7
    resumed, straight = snapshot(tmp_path), snapshot(never_stopped)
    assert resumed.tensors == straight.tensors
    assert resumed.progressive == straight.progressive


def test_outside_a_run_sigterm_ends_as_ever():
    before = signal.getsignal(signal.SIGTERM)
    with termination_asked() as asked:
        signal.raise_signal(signal.SIGTERM)
        assert asked()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.filterwarnings("error:Please use DTensor")
def test_saved_in_the_background_is_saved_at_once(tmp_path, never_stopped, job_of, snapshot):
    train(job_of(tmp_path, checkpoint_async=True))
    assert vars(snapshot(tmp_path)) == vars(snapshot(never_stopped))


@pytest.mark.parametrize("moment", ["after step 6", "before step-00000008 is committed", "after step 13"])
def test_killed_while_it_saves_in_the_background_and_run_again_is_never_stopped(
    tmp_path, never_stopped, job_of, run_job, snapshot, moment
):
    job = job_of(tmp_path, checkpoint_async=True)
    (killed,) = run_job(job, moment=moment)
    assert killed.returncode == -signal.SIGKILL, killed.errors
    train(job)
    assert vars(snapshot(tmp_path)) == vars(snapshot(never_stopped))


def test_what_is_saved_is_what_was_when_it_was_taken(tmp_path):
    """The tensors change while they are written, as a training changes them."""
    tensors = {"model.weight": torch.arange(1 << 20, dtype=torch.float32)}
    state = {"recorder": {"losses": [1.0]}}
    policy = CheckpointPolicy(tmp_path, every=1, keep=2, identity=IDENTITY)
    with joined_world(1) as world, Saver(policy, world) as saver:
        saver.save(1, tensors, state)
        tensors["model.weight"].zero_()
        state["recorder"]["losses"].append(2.0)
    loaded = {"model.weight": torch.empty(1 << 20)}
    with joined_world(1):
        state = load_checkpoint(tmp_path / "step-00000001", tensors=loaded)
    assert torch.equal(loaded["model.weight"], torch.arange(1 << 20, dtype=torch.float32))
    assert state == {"recorder": {"losses": [1.0]}}


def test_a_later_save_is_what_was_then_in_the_memory_of_the_one_before(tmp_path, job_of, log):
    with joined_world(1) as world:
        trainer = build_trainer(job_of(tmp_path), world, log.store)
        first = {name: own_copy(value) for name, value in trainer.tensors().items()}
        kept = {name: plain(value).clone() for name, value in first.items()}
        with torch.no_grad():
            for value in trainer.tensors().values():
                plain(value).add_(1)
        for name, value in trainer.tensors().items():
            second = own_copy(value, first[name])
            assert second is first[name]
            assert torch.equal(plain(second), plain(value))
            assert torch.equal(plain(second), kept[name] + 1)
            assert plain(second).numel() == 0 or plain(second).data_ptr() != plain(value).data_ptr()


def plain(value):
    """The one shard of a table of one rank, or a tensor as it is."""
    return value.local_tensor() if isinstance(value, ShardedTensor) else value


def test_a_save_that_fails_in_the_background_ends_the_training(tmp_path):
    (tmp_path / "folder").write_text("in the way")
    policy = CheckpointPolicy(tmp_path / "folder", every=1, keep=2, identity=IDENTITY)
    with pytest.raises(UserError, match="folder"), joined_world(1) as world, Saver(policy, world) as saver:
        saver.save(1, {"weight": torch.zeros(3)}, {})
        saver.save(2, {"weight": torch.zeros(3)}, {})


def test_saves_may_be_so_much_time_apart_whatever_the_step(tmp_path, monkeypatch):
    policy = CheckpointPolicy(tmp_path, every=timedelta(seconds=60), keep=2, identity=IDENTITY)
    now = [100.0]
    monkeypatch.setattr("foundation.training.saver.time.monotonic", lambda: now[0])
    with joined_world(1) as world, Saver(policy, world) as saver:
        assert not saver.is_due(1)
        now[0] += 60.0
        assert saver.is_due(1)
        assert saver.is_due(2)
        saver.save(2, {"weight": torch.zeros(3)}, {})
        assert not saver.is_due(3)


def test_saves_are_as_far_apart_as_their_cost_and_the_failures_say(tmp_path, monkeypatch):
    policy = CheckpointPolicy(tmp_path, every=1, keep=2, identity=IDENTITY, failures_every_s=5000.0)
    now = [100.0]
    monkeypatch.setattr("foundation.training.saver.time.monotonic", lambda: now[0])
    with joined_world(1) as world, Saver(policy, world) as saver:
        now[0] += 99.0
        assert not saver.is_due(1), "one second is assumed: sqrt(2 * 1 * 5000)"
        now[0] += 1.0
        assert saver.is_due(1)


def test_a_finished_run_that_is_run_again_stays_as_it_is(copied, never_stopped, job_of, snapshot):
    report = train(job_of(copied))
    assert report.stream.num_rows == 0
    assert report.stream.resumed_at_step == report.stream.num_steps == 26
    assert vars(snapshot(copied)) == vars(snapshot(never_stopped))
    assert (copied / "report.json").read_bytes() == (never_stopped / "report.json").read_bytes(), "its times too"


def test_a_report_that_a_finished_run_still_owes_is_written_and_then_stays(copied, never_stopped, job_of):
    """As where the machine died between the last checkpoint and the report; the report there is of an earlier end."""
    path = copied / "report.json"
    told = json.loads(path.read_bytes())
    assert told["stream"]["num_rows"] > 0
    path.write_text(json.dumps(told | {"stream": told["stream"] | {"num_steps": 25}, "progressive": {}}))
    for _ in range(2):
        train(job_of(copied))
        owed = json.loads(path.read_bytes())
        assert owed["progressive"] == told["progressive"]
        assert (owed["stream"]["num_steps"], owed["stream"]["num_rows"]) == (26, 0)


def test_the_newest_checkpoints_are_kept_and_no_other(never_stopped, snapshot):
    assert snapshot(never_stopped).checkpoints == ["step-00000024", "step-00000026"]


def test_a_log_without_a_training_row_gives_the_first_parameters_and_no_scores(tmp_path, log, job_of, snapshot):
    job = job_of(tmp_path, until_us=log.store.manifest.first_time)
    report = train(job)
    assert report.stream.num_steps == 0
    assert snapshot(tmp_path).checkpoints == ["step-00000000"]
    assert len(soft_labels_of(tmp_path, log, job).row_ids) == 0


def test_what_does_not_change_the_numbers_may_change_between_stop_and_resume(tmp_path, never_stopped, job_of, snapshot):
    train_and_stop(job_of(tmp_path), 6)
    train(job_of(tmp_path, checkpoint_every=3, keep_checkpoints=1))
    resumed, straight = snapshot(tmp_path), snapshot(never_stopped)
    assert resumed.tensors == straight.tensors
    assert resumed.progressive == straight.progressive
    assert resumed.checkpoints == ["step-00000026"]


def test_a_dense_part_that_would_hardly_take_a_step_is_refused(tmp_path, job_of):
    with pytest.raises(UserError, match=r"foundation\.training\.accumulate: .* at most the 26 batches"):
        train(job_of(tmp_path, accumulate=27))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("foundation.training.seed", {"seed": 4}),
        ("foundation.training.dense_learning_rate", {"dense_learning_rate": 0.5}),
        ("foundation.model.hidden", {"model": {"hidden": 32}}),
        ("split.test_from", {"until_us": 1_707_000_000_000_000}),
        ("objectives.click", "a heavier objective"),
        ("checkpoint: the log so far", "another log"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused_by_what_changed(copied, log, other_log, job_of, name, change):
    if change == "a heavier objective":
        objectives = log.schema.objectives | {"click": log.schema.objectives["click"].model_copy(update={"weight": 2})}
        change = {"schema": log.schema.model_copy(update={"objectives": objectives})}
    if change == "another log":
        change = {"store": other_log.folder}
    with pytest.raises(MismatchError) as caught:
        train(job_of(copied, **change))
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].where.endswith(name)
    assert "--fresh" in caught.value.problems[0].remedy


def damage(path, how):
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-20] if how == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("how", ["truncated", "edited", "gone"])
@pytest.mark.parametrize("file", ["*.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_refused(copied, job_of, file, how):
    (path,) = (copied / "checkpoints" / "step-00000026").glob(file)
    damage(path, how)
    with pytest.raises(MismatchError, match=path.name.replace(".", r"\.")):
        train(job_of(copied))


@pytest.mark.parametrize("how", ["truncated", "edited", "gone"])
@pytest.mark.parametrize("file", ["*.safetensors", "state.json", "manifest.json"])
def test_a_run_goes_on_from_before_a_damaged_checkpoint_as_if_nothing_had_been(
    copied, never_stopped, job_of, snapshot, file, how
):
    folder = copied / "checkpoints"
    (path,) = (folder / "step-00000026").glob(file)
    damage(path, how)
    (error,) = set_aside_damaged(folder)
    assert path.name in str(error)
    assert sorted(path.name for path in folder.iterdir()) == ["damaged-step-00000026", "step-00000024"]
    assert train(job_of(copied)).stream.resumed_at_step == 24
    shutil.rmtree(folder / "damaged-step-00000026")
    assert vars(snapshot(copied)) == vars(snapshot(never_stopped))


def test_only_what_is_newer_than_the_newest_whole_checkpoint_is_set_aside(copied):
    folder = copied / "checkpoints"
    damage(folder / "step-00000024" / "state.json", "edited")
    assert set_aside_damaged(folder) == []
    damage(folder / "step-00000026" / "state.json", "edited")
    assert len(set_aside_damaged(folder)) == 2
    assert list_checkpoints(folder) == []


def test_a_checkpoint_of_another_format_is_not_taken_for_damaged(copied):
    path = copied / "checkpoints" / "step-00000026" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"format": 4}))
    with pytest.raises(MismatchError) as caught:
        set_aside_damaged(path.parent.parent)
    assert not isinstance(caught.value, DamagedError)
    assert path.is_file()


def test_a_malformed_checkpoint_manifest_is_refused(copied, job_of):
    (copied / "checkpoints" / "step-00000026" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(MismatchError, match="a checkpoint manifest"):
        train(job_of(copied))


def test_a_checkpoint_of_the_first_format_is_refused_which_had_no_number(copied, job_of):
    path = copied / "checkpoints" / "step-00000026" / "manifest.json"
    content = json.loads(path.read_bytes())
    assert content.pop("format") == 3
    path.write_text(json.dumps(content))
    with pytest.raises(MismatchError, match="a checkpoint manifest"):
        train(job_of(copied))


def test_a_folder_without_a_manifest_is_no_checkpoint(copied, never_stopped, job_of, snapshot):
    (copied / "checkpoints" / "step-00000026" / "manifest.json").unlink()
    assert train(job_of(copied)).stream.resumed_at_step == 24
    assert vars(snapshot(copied)) == vars(snapshot(never_stopped))


def test_scores_of_the_steps_so_far_that_are_gone_stop_a_resumed_run(copied, job_of):
    shutil.rmtree(copied / "soft_labels")
    with pytest.raises(MismatchError, match=r"part-0000-00000\.parquet"):
        train(job_of(copied))


def test_what_the_process_did_before_it_was_asked_to_train_is_not_of_the_start(tmp_path, job_of):
    asked = time.time()
    train_foundation(job_of(tmp_path), started_s=asked)
    account = goodput_of(read_journal(tmp_path / JOURNAL_FILE))
    assert 0 < account.startup_s < account.wall_s <= time.time() - asked


def test_the_journal_of_a_run_that_was_killed_tells_what_was_done_twice(tmp_path, job_of, run_job):
    job = job_of(tmp_path)
    for moment in ("after step 6", "never"):
        run_job(job, moment=moment)
    account = goodput_of(read_journal(tmp_path / JOURNAL_FILE))
    assert account.num_attempts == 2
    assert set(account.startup_phases_s) == {
        *("imports", "store", "process group", "plan and build", "checkpoint", "first batch")
    }
    assert min(account.startup_phases_s.values()) >= 0
    assert account.startup_s > account.startup_phases_s["imports"] > 0.5, "torch alone takes longer"
    assert account.productive_s > 0
    assert account.checkpoint_stall_s > 0
    parts = account.startup_s + account.productive_s + account.data_wait_s + account.checkpoint_stall_s
    assert parts + account.redone_s + account.down_s == pytest.approx(account.wall_s)
