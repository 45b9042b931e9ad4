"""Learning on after the training cut: the same model as in one go, and the one at the cut is still there."""

from dataclasses import replace

import numpy as np
import orjson
import pytest
import torch
from safetensors.torch import load_file

from foundation.data.reader import Reader
from foundation.soft_labels import read_soft_labels
from foundation.training.checkpoint import list_checkpoints, read_manifest
from foundation.training.foundation_model import checkpoint_at_cut, train_foundation
from serving.errors import MismatchError
from tests.foundation.training.stopping import train_and_stop
from transfer.label import LabelJob, label


@pytest.fixture(scope="module")
def later_job(log, job_of):
    """A job that goes on to the end of the log."""
    end = log.store.manifest.last_time + 1
    return lambda folder, **fields: job_of(folder, cut_us=log.until_us, until_us=fields.pop("until_us", end), **fields)


@pytest.fixture(scope="module")
def in_one_go(tmp_path_factory, later_job):
    """The folder of a run to the end of the log; not to be changed."""
    folder = tmp_path_factory.mktemp("in_one_go")
    train_foundation(later_job(folder))
    return folder


@pytest.fixture(scope="module")
def at_cut(tmp_path_factory, later_job, log):
    """The folder of a run that ends at the cut; not to be changed."""
    folder = tmp_path_factory.mktemp("at_cut")
    train_foundation(later_job(folder, until_us=log.until_us))
    return folder


def later_rows(log):
    positions = log.store.select(start=log.until_us)
    with Reader(log.store, log.schema, positions, len(positions)) as reader:
        (batch,) = reader
    return batch


def later_labels(folder, log):
    digests = {"data_fingerprint": log.store.fingerprint, "schema_digest": log.schema.schema_digest()}
    return read_soft_labels(folder / "soft_labels_from_cut", **digests)


@pytest.mark.parametrize("stops", [(), (10,), (26, 5), (28, 1, 3)])
def test_gone_on_stopped_or_not_is_gone_in_one_go(tmp_path, in_one_go, later_job, log, snapshot, stops):
    job = later_job(tmp_path)
    if not stops:
        train_foundation(replace(job, until_us=log.until_us))
    for num_steps in stops:
        train_and_stop(job, num_steps)
    train_foundation(job)
    assert vars(snapshot(tmp_path)) == vars(snapshot(in_one_go))


def test_the_checkpoint_at_the_cut_is_that_of_a_run_that_ends_there_and_is_kept(in_one_go, at_cut, later_job):
    kept, ended = checkpoint_at_cut(later_job(in_one_go)), checkpoint_at_cut(later_job(at_cut))
    assert (kept / "state.json").read_bytes() == (ended / "state.json").read_bytes()
    (one,), (other,) = (list(path.glob("*.safetensors")) for path in (kept, ended))
    tensors, expected = load_file(one), load_file(other)
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    names = [path.name for path in list_checkpoints(in_one_go / "checkpoints")]
    assert names[0] == kept.name == "step-00000026"
    assert len(names) == 1 + later_job(in_one_go).config.training.keep_checkpoints


@pytest.mark.parametrize(("every", "stop", "whole"), [(2, 6, False), (2, 25, False), (2, 26, True), (26, 26, True)])
def test_only_a_model_that_went_all_the_way_to_the_cut_is_the_one_at_the_cut(
    tmp_path, later_job, log, every, stop, whole
):
    """Of 26 steps; the last one's checkpoint may be one of those between."""
    job = later_job(tmp_path, checkpoint_every=every)
    train_and_stop(replace(job, until_us=log.until_us), stop)
    assert (checkpoint_at_cut(job) is not None) == whole


def test_a_training_that_stopped_before_the_cut_gives_no_labels_until_it_has_gone_on(tmp_path, at_cut, later_job, log):
    job = later_job(tmp_path / "run")
    training, labels = replace(job, until_us=log.until_us), LabelJob(job, tmp_path / "labels", log.until_us)
    train_and_stop(training, 6)
    with pytest.raises(MismatchError, match=r"stopped at step 4, before the cut.*`gemcut train`"):
        label(labels)
    assert not labels.target.exists()
    train_foundation(training)
    assert label(labels) == later_rows(log).num_candidates
    expected = checkpoint_at_cut(later_job(at_cut))
    assert (checkpoint_at_cut(job) / "state.json").read_bytes() == (expected / "state.json").read_bytes()


def test_an_unfinished_training_of_another_run_is_refused_as_that(tmp_path, later_job, log):
    train_and_stop(later_job(tmp_path, until_us=log.until_us), 6)
    with pytest.raises(MismatchError, match=r"foundation\.training\.seed: .* another one"):
        label(LabelJob(later_job(tmp_path, seed=4), tmp_path / "labels", log.until_us))


def test_what_stands_for_the_training_period_does_not_change_after_the_cut(in_one_go, at_cut, snapshot):
    one, other = snapshot(in_one_go), snapshot(at_cut)
    assert one.soft_labels == other.soft_labels
    assert one.progressive["progressive"] == other.progressive["progressive"]
    assert one.tensors != other.tensors


def test_labels_are_those_of_the_model_at_the_cut(tmp_path, in_one_go, at_cut, later_job, log):
    stamps = {"data_fingerprint": log.store.fingerprint, "schema_digest": log.schema.schema_digest()}
    read = []
    for place, folder in enumerate((in_one_go, at_cut)):
        target = tmp_path / str(place)
        label(LabelJob(later_job(folder), target, log.until_us))
        read.append(read_soft_labels(target, **stamps))
    np.testing.assert_array_equal(read[0].row_ids, read[1].row_ids)
    np.testing.assert_array_equal(read[0].logits, read[1].logits)
    assert read[0].cutoffs_us.tolist() == read[1].cutoffs_us.tolist()
    assert read[0].manifest.teacher.checkpoint == read_manifest(checkpoint_at_cut(later_job(in_one_go))).digest


def test_every_later_row_is_scored_once_before_it_is_learned(in_one_go, log, later_job):
    rows, labels = later_rows(log), later_labels(in_one_go, log)
    assert sorted(labels.row_ids.tolist()) == sorted(rows.row_ids.tolist())
    times = np.repeat(rows.times, np.diff(rows.candidate_offsets))
    cutoffs = labels.cutoffs_us[np.searchsorted(labels.row_ids, rows.row_ids)]
    assert np.all(cutoffs <= times)
    assert cutoffs[0] == log.store.times[log.store.select(end=log.until_us)[-1]]
    assert cutoffs[-1] >= log.until_us


def test_metrics_of_rows_from_the_cut_on_are_apart(in_one_go, log):
    rows, labels = later_rows(log), later_labels(in_one_go, log)
    logits = labels.of_rows(rows.row_ids, np.full(rows.num_candidates, 2**62)).astype(np.float64)
    told = orjson.loads((in_one_go / "report.json").read_bytes())["progressive_from_cut"]
    for place, objective in enumerate(log.schema.objectives):
        y, z = rows.labels[:, place], logits[:, place]
        known = np.isfinite(y) & np.isfinite(z)
        expected = np.mean(np.log1p(np.exp(-z[known])) + (1 - y[known]) * z[known])
        assert told[objective]["num_rows"] == known.sum() > 0
        assert told[objective]["log_loss"] == pytest.approx(expected, rel=1e-9)


def test_a_run_that_has_gone_on_stays_as_it_is_when_asked_for_less(tmp_path, later_job, log, snapshot):
    job = later_job(tmp_path)
    train_foundation(job)
    before = vars(snapshot(tmp_path))
    report = train_foundation(replace(job, until_us=log.until_us))
    assert report.stream.num_rows == 0
    assert vars(snapshot(tmp_path)) == before


def test_it_goes_on_again_to_a_later_time(tmp_path, later_job, log):
    half = int(log.store.times[225])
    first = train_foundation(later_job(tmp_path, until_us=half))
    assert first.stream.num_rows == log.store.candidate_counts[:225].sum()
    then = train_foundation(later_job(tmp_path))
    assert then.stream.num_rows == log.store.candidate_counts[225:].sum()
    assert then.stream.resumed_at_step == first.stream.num_steps
    assert sorted(later_labels(tmp_path, log).row_ids.tolist()) == sorted(later_rows(log).row_ids.tolist())


def test_labels_that_were_not_ripe_at_the_cut_are_learned_after_it(tmp_path, in_one_go, log):
    """The readers of second visits have gone through every request whose labels were ripe at the end."""
    newest = list_checkpoints(in_one_go / "checkpoints")[-1]
    visits = orjson.loads((newest / "state.json").read_bytes())["visits"]
    day_us = 86_400_000_000
    ripe = len(log.store.select(end=log.store.manifest.last_time + 2 - day_us))
    assert {delay: state["next"] for delay, state in visits.items()} == {
        "0": log.store.manifest.num_requests,
        str(day_us): ripe,
    }
    assert ripe > len(log.store.select(end=log.until_us - day_us + 1))
