"""Two ranks on gloo learn what one learns: the same rows, losses over all of them, and the same parameters."""

import signal

import numpy as np
import orjson
import pytest
import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor

from foundation.goodput.journal import Journal
from foundation.goodput.ranks import RankMeasures, ranks_account
from foundation.parallel.table_rows import first_rows
from foundation.parallel.world import joined_world
from foundation.soft_labels import read_soft_labels
from foundation.training.checkpoint import list_checkpoints, load_checkpoint
from foundation.training.foundation_model import (
    BEFORE_CUT,
    ProgressiveRecorder,
    build_trainer,
    run_identity,
    train_foundation,
    visits_of,
)
from foundation.training.preemption import PREEMPTED
from foundation.training.saver import CheckpointPolicy
from foundation.training.stream import learn
from tests.foundation.training.conftest import TRAINING

# Float32 sums over rows in another order, through a dozen steps of AdamW, whose first steps are as long as the learning
# rate (1e-3) however small the gradient.
CLOSE = 1e-4

COLUMNS = {"tables": {"item": {"kind": "column_wise", "ranks": [1, 3]}}}

pytestmark = pytest.mark.distributed


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


def alone(folder, job_of, log, **changed):
    """What one rank makes of a job."""
    job = job_of(folder, **changed)
    train_foundation(job)
    return outcome(job, log)


def together(job, run_job, num_ranks):
    for rank in run_job(job, num_ranks):
        assert rank.returncode == 0, rank.errors


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory, log, job_of):
    return alone(tmp_path_factory.mktemp("one_rank"), job_of, log)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory, log, job_of, run_job):
    """What four ranks make of the same job, spread in several ways: by name the job and its outcome."""
    ways = {
        "1D": {},
        "1D, nothing ahead": {"parallel": {"overlap": False}},
        "HSDP": {"parallel": {"dense_shard": 2}},
        "bfloat16": {"precision": "bfloat16"},
        "bfloat16, HSDP": {"precision": "bfloat16", "parallel": {"dense_shard": 2}},
        "columns": {"parallel": COLUMNS},
        "columns, SGD": {"table_optimizer": "sgd", "parallel": COLUMNS},
        "1D, SGD": {"table_optimizer": "sgd"},
        "2D, SGD": {"table_optimizer": "sgd", "parallel": {"sharding_group": 2}},
        "2D": {"parallel": {"sharding_group": 2}},
        "2D, HSDP": {"checkpoint_async": True, "parallel": {"sharding_group": 2, "dense_shard": 2}},
    }
    jobs = {name: job_of(tmp_path_factory.mktemp("way"), **changed) for name, changed in ways.items()}
    together(list(jobs.values()), run_job, 4)
    return {name: (job, outcome(job, log)) for name, job in jobs.items()}


def test_ids_that_are_sent_ahead_change_no_bit(four_ranks, snapshot):
    ahead, after = (four_ranks[way][0].folder for way in ("1D", "1D, nothing ahead"))
    assert snapshot(ahead) == snapshot(after)


@pytest.mark.parametrize("way", ["1D", "HSDP"])
def test_four_ranks_learn_what_one_learns(way, four_ranks, one_rank):
    assert_close(four_ranks[way][1], one_rank)


@pytest.mark.parametrize("way", ["2D, SGD", "columns, SGD"])
def test_by_sgd_copies_that_are_averaged_and_columns_that_are_apart_are_one_table(way, four_ranks):
    assert_close(four_ranks[way][1], four_ranks["1D, SGD"][1])


def test_four_ranks_learn_by_sgd_what_one_learns(four_ranks, tmp_path, job_of, log):
    assert_close(four_ranks["1D, SGD"][1], alone(tmp_path, job_of, log, table_optimizer="sgd"))


@pytest.mark.parametrize("way", ["2D", "columns"])
def test_by_adagrad_copies_and_columns_stay_near_one_table(way, four_ranks, one_rank):
    """Two copies: a row that one rank meets has a first step 1 / sqrt(2) as long: its copy's sum of squares takes the
    gradient in before it is averaged. A row with the same gradient in both has steps sqrt(2) as long, as its sums are
    not twice one table's. Halves of a row have rates of their own, within sqrt(2) of the row's for the same reason."""
    got, expected = four_ranks[way][1], one_rank
    differences = np.abs(got[0].logits - expected[0].logits)
    assert 0 < np.nanmean(differences) < 0.05 * np.nanstd(expected[0].logits)
    for objective, metrics in expected[2].items():
        assert got[2][objective].log_loss == pytest.approx(metrics.log_loss, rel=0.02)
    for name, moved in moves_of_rows(got[1]).items():
        ratio = moved / moves_of_rows(expected[1])[name]
        assert 2**-0.5 < ratio < 2**0.5, name


def test_blocks_that_are_gathered_in_bfloat16_learn_what_whole_ones_do(four_ranks):
    assert_close(four_ranks["bfloat16, HSDP"][1], four_ranks["bfloat16"][1])


def test_where_one_rank_goes_on_from_two_copies_their_sums_mean_the_same_and_all_else_is_as_it_was(four_ranks, log):
    """Each copy's sum of squares has grown twice as fast, and a step is by half of it."""
    job, (_, saved, _) = four_ranks["2D"]
    with joined_world(1) as world:
        trainer = build_trainer(job, world, log.store)
        identity = run_identity(job, log.store.fingerprint)
        policy = CheckpointPolicy(folder=job.folder / "checkpoints", every=1000, keep=9, identity=identity)
        with visits_of(job, log.store, world) as visits:  # nothing is left of them
            learn(
                trainer,
                visits,
                loss_of=lambda visit, outputs: outputs.sum(),
                recorder=ProgressiveRecorder(job, world),
                policy=policy,
                journal=Journal(None),
            )
        found = {name: whole_tensor(value).clone() for name, value in trainer.tensors().items()}
    assert found.keys() == saved.keys()
    sums = [name for name in found if name.endswith("momentum1")]
    assert any(saved[name].any() for name in sums)
    for name, value in found.items():
        torch.testing.assert_close(value, saved[name] / 2 if name in sums else saved[name], rtol=0, atol=0)


def test_copies_and_shards_of_the_dense_part_go_together(four_ranks):
    assert_close(four_ranks["2D, HSDP"][1], four_ranks["2D"][1])


def moves_of_rows(tensors):
    """Mean distance of each table's rows from where they began; of those that moved."""
    moves = {}
    for name, rows in tensors.items():
        if not name.startswith("model.embedding."):
            continue
        table = name.removesuffix(".weight").rpartition(".table_")[2]
        began = first_rows(table, TRAINING["seed"], first=0, num=len(rows), width=rows.shape[1])
        distances = (rows - began).norm(dim=1)
        moves[table] = float(distances[distances > 0].mean())
    return moves


def test_two_ranks_learn_the_uncertainties_that_one_learns(tmp_path, log, job_of, run_job):
    settings = {"weighting": "uncertainty", "batch_requests": 64}
    two = job_of(tmp_path / "two", **settings)
    together(two, run_job, 2)
    assert_close(outcome(two, log), alone(tmp_path / "one", job_of, log, **settings))


def test_a_run_of_two_ranks_that_died_is_finished_by_one(tmp_path, one_rank, log, job_of, run_job):
    job = job_of(tmp_path)
    ranks = run_job(job, 2, moment="after step 10")
    assert ranks[0].returncode == -signal.SIGKILL, ranks[0].errors
    assert ranks[1].returncode != 0
    assert train_foundation(job).stream.resumed_at_step == 8
    assert_close(outcome(job, log), one_rank)


def test_ranks_save_and_leave_together_when_one_is_asked_to_and_other_numbers_go_on(
    tmp_path, one_rank, log, job_of, run_job
):
    job = job_of(tmp_path, parallel={"tables": {"item": {"kind": "table_wise", "ranks": [1]}}})
    for rank in run_job(job, 4, moment="asked after step 6"):
        assert rank.returncode == PREEMPTED, rank.errors
    assert [path.name for path in list_checkpoints(job.folder / "checkpoints")] == ["step-00000004", "step-00000007"]
    for rank in run_job(job, 2, moment="asked after step 3"):
        assert rank.returncode == PREEMPTED, rank.errors
    together(job, run_job, 3)
    assert_close(outcome(job, log), one_rank)


def test_a_batch_of_one_request_leaves_a_rank_without_any(tmp_path, log, job_of, run_job):
    settings = {"batch_requests": len(log.store.select(end=log.until_us)) - 1}
    job = job_of(tmp_path / "two", **settings)
    together(job, run_job, 2)
    expected = alone(tmp_path / "one", job_of, log, **settings)
    assert_close(outcome(job, log), expected)


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
