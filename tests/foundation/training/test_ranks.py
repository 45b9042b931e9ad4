"""Two ranks on gloo learn what one learns: the same rows, losses over all of them, and the same parameters."""

import shutil
import signal

import numpy as np
import orjson
import pytest
import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor

from foundation.goodput.ranks import RankMeasures, ranks_account
from foundation.parallel.world import joined_world
from foundation.soft_labels import read_soft_labels
from foundation.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from foundation.training.foundation_model import (
    BEFORE_CUT,
    ProgressiveRecorder,
    build_trainer,
    run_identity,
    train_foundation,
    visits_of,
)
from foundation.training.preemption import PREEMPTED

# Float32 sums over rows in another order, through a dozen steps of AdamW, whose first steps are as long as the learning
# rate (1e-3) however small the gradient.
CLOSE = 1e-4

pytestmark = pytest.mark.distributed


def begun(job, log):
    """A checkpoint before the first step, so that all start from the same tables, however they are spread."""
    with joined_world(1) as world:
        trainer = build_trainer(job, world, log.store)
        with visits_of(job, log.store, world) as visits:
            state = {"visits": visits.state_dict(), "recorder": ProgressiveRecorder(job, world).state()}
        save_checkpoint(
            job.folder / "checkpoints",
            step=0,
            tensors=trainer.tensors(),
            state=state,
            identity=run_identity(job, log.store.fingerprint),
            world=world,
        )
    return job.folder


def outcome(job, log):
    """(soft labels, tensors of the newest checkpoint by name, metrics) of a run, read by one rank."""
    identity = run_identity(job, log.store.fingerprint)
    labels = read_soft_labels(
        job.folder / "soft_labels",
        data_fingerprint=identity.data_fingerprint,
        schema_digest=identity.schema_digest,
        run=identity.run,
    )
    with joined_world(1) as world:
        trainer = build_trainer(job, world, log.store)
        tensors = trainer.tensors()
        state = load_checkpoint(list_checkpoints(job.folder / "checkpoints")[-1], tensors=tensors)
        recorder = ProgressiveRecorder(job, world)
        recorder.load(state["recorder"])
        whole = {name: whole_tensor(value).clone() for name, value in tensors.items()}
        return labels, whole, recorder.metrics(BEFORE_CUT)


def whole_tensor(value):
    return value.local_tensor() if isinstance(value, ShardedTensor) else value


def assert_close(got, expected):
    (labels, tensors, metrics), (labels_1, tensors_1, metrics_1) = got, expected
    np.testing.assert_array_equal(labels.row_ids, labels_1.row_ids)
    np.testing.assert_array_equal(labels.cutoffs_us, labels_1.cutoffs_us)
    np.testing.assert_allclose(labels.logits, labels_1.logits, rtol=CLOSE, atol=CLOSE)
    assert tensors.keys() == tensors_1.keys()
    for name, value in tensors_1.items():
        torch.testing.assert_close(
            tensors[name], value, rtol=CLOSE, atol=CLOSE, msg=lambda text, n=name: f"{n}: {text}"
        )
    for objective, expected_metrics in metrics_1.items():
        assert metrics[objective].num_rows == expected_metrics.num_rows
        assert metrics[objective].num_positives == expected_metrics.num_positives
        assert metrics[objective].log_loss == pytest.approx(expected_metrics.log_loss, rel=CLOSE)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory, log, job_of):
    """A run of one rank from a first checkpoint: (the folder before its first step, what came out)."""
    begin, run = tmp_path_factory.mktemp("begin"), tmp_path_factory.mktemp("one_rank") / "run"
    begun(job_of(begin), log)
    job = job_of(shutil.copytree(begin, run))
    train_foundation(job)
    return begin, outcome(job, log)


def test_two_ranks_learn_the_uncertainties_that_one_learns(tmp_path, log, job_of, run_job):
    two = job_of(tmp_path / "two", weighting="uncertainty", batch_requests=64)
    begun(two, log)
    one = job_of(shutil.copytree(two.folder, tmp_path / "one"), weighting="uncertainty", batch_requests=64)
    train_foundation(one)
    for rank in run_job(two, 2):
        assert rank.returncode == 0, rank.errors
    assert_close(outcome(two, log), outcome(one, log))


def test_two_ranks_learn_what_one_learns(tmp_path, one_rank, log, job_of, run_job):
    job = job_of(shutil.copytree(one_rank[0], tmp_path / "run"))
    for rank in run_job(job, 2):
        assert rank.returncode == 0, rank.errors
    assert_close(outcome(job, log), one_rank[1])


def test_a_run_of_two_ranks_that_died_is_finished_by_one(tmp_path, one_rank, log, job_of, run_job):
    job = job_of(shutil.copytree(one_rank[0], tmp_path / "run"))
    ranks = run_job(job, 2, moment="after step 10")
    assert ranks[0].returncode == -signal.SIGKILL, ranks[0].errors
    assert ranks[1].returncode != 0
    assert train_foundation(job).stream.resumed_at_step == 8
    assert_close(outcome(job, log), one_rank[1])


def test_two_ranks_save_and_leave_together_when_one_is_asked_to(tmp_path, one_rank, log, job_of, run_job):
    job = job_of(shutil.copytree(one_rank[0], tmp_path / "run"))
    for rank in run_job(job, 2, moment="asked after step 10"):
        assert rank.returncode == PREEMPTED, rank.errors
    assert [path.name for path in list_checkpoints(job.folder / "checkpoints")] == ["step-00000008", "step-00000011"]
    for rank in run_job(job, 2):
        assert rank.returncode == 0, rank.errors
    assert_close(outcome(job, log), one_rank[1])


def test_a_batch_of_one_request_leaves_a_rank_without_any(tmp_path, log, job_of, run_job):
    num_requests = len(log.store.select(end=log.until_us))
    job = job_of(tmp_path / "two", batch_requests=num_requests - 1)
    begun(job, log)
    alone = job_of(shutil.copytree(job.folder, tmp_path / "one"), batch_requests=num_requests - 1)
    assert train_foundation(alone).stream.num_steps == 3
    for rank in run_job(job, 2):
        assert rank.returncode == 0, rank.errors
    assert_close(outcome(job, log), outcome(alone, log))


def test_the_rank_that_works_longest_is_the_one_that_the_others_wait_for(tmp_path, job_of, run_job):
    """Its own time is its work alone: the other rank's waiting for it is not the other's own."""
    job, own_work_s = job_of(tmp_path), 0.1
    for rank in run_job(job, 2, moment=f"works {own_work_s}"):
        assert rank.returncode == 0, rank.errors
    report = orjson.loads((tmp_path / "report.json").read_bytes())
    account = ranks_account([RankMeasures(**rank) for rank in report["ranks"]])
    worked_s = own_work_s * report["stream"]["num_steps"]
    assert account.slowest == 0
    assert account.own_s[0] - account.own_s[1] > worked_s / 2
    assert account.lag == pytest.approx((account.own_s[0] - account.own_s[1]) / report["ranks"][0]["seconds"], rel=0.05)
    assert sum(rank["num_rows"] for rank in report["ranks"]) > report["ranks"][0]["num_rows"] > 0
