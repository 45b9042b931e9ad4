"""Trains students: for each placement and seed one that learns from the teacher too, and its twin that does not."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from eval.artifacts import sha256_of, write_file, write_json
from eval.predictions import Predictions, save_predictions
from foundation.data.batch import Int64Array
from foundation.data.reader import Reader
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.goodput.journal import Journal
from foundation.model.inputs import to_tensors
from foundation.parallel.gather import full_tensors
from foundation.parallel.world import World, joined_world
from foundation.soft_labels import MANIFEST_FILE as SOFT_LABEL_MANIFEST
from foundation.soft_labels import SoftLabels, read_soft_labels
from foundation.training.checkpoint import Identity, list_checkpoints, read_manifest
from foundation.training.loss import masked_cross_entropy
from foundation.training.prior import first_log_odds
from foundation.training.rates import cooldown
from foundation.training.saver import CheckpointPolicy
from foundation.training.stream import Progress, learn
from foundation.training.trainer import Trainer, TrainerConfig
from foundation.training.visits import Visit, Visits
from serving.errors import Problem, UserError
from transfer.config import Placement
from transfer.liveness import LossRecorder, recent
from transfer.losses import distillation_loss
from transfer.predict import predictions_of
from transfer.student import Student

Arm = Literal["student", "twin"]
ARMS: tuple[Arm, ...] = ("twin", "student")
WEIGHTS_FILE = "weights.safetensors"
RESULT_FILE = "result.json"
PREDICTIONS_FILE = "predictions.parquet"
SCORING_REQUESTS = 512
CHECKPOINT_STEPS = 1000


@dataclass(frozen=True, slots=True)
class StudentJob:
    """One student, or one twin.

    Attributes:
        name: the placement's.
        soft_labels: folder of the progressive soft labels; a twin does not read it.
        folder: gets the weights, the test predictions and the result.
        until_us: requests before this time are learned from, the others are the test.
    """

    schema: Schema
    name: str
    placement: Placement
    arm: Arm
    seed: int
    store: Path
    soft_labels: Path
    folder: Path
    until_us: int
    threads: int = 1


@dataclass(frozen=True, slots=True)
class StudentResult:
    """What a job left behind: `identity` says of what it is the result, `teacher` whose run's labels it learned."""

    identity: str
    teacher: str | None
    weights_digest: str
    num_steps: int
    num_rows: int
    seconds: float
    soft_label_coverage: float
    label_loss: float
    distillation_loss: float


def train_student(job: StudentJob, progress: Progress | None = None) -> StudentResult:
    """Train one arm and score the test rows; a job that is already done is not done again.

    Raises:
        MismatchError: the soft labels are of another store or schema, or leak.
        UserError: the distillation did nothing: no row had a soft label, or the loss stood still; or the student
            diverged.
    """
    store = Store.open(job.store, job.schema)
    done = finished_student(job, store)
    if done is not None:
        return done
    soft_labels = _soft_labels(job, store)
    identity = student_identity(job, store)
    _remove_others(job, identity)
    recorder = LossRecorder()
    with joined_world(job.threads) as world:
        trainer = build_student(job, world, store)
        policy = CheckpointPolicy(
            folder=job.folder / "checkpoints",
            every=CHECKPOINT_STEPS,
            keep=1,
            identity=Identity(
                run=identity, schema_digest=job.schema.schema_digest(), data_fingerprint=store.fingerprint
            ),
        )
        loss_of = _loss(job, soft_labels, recorder)
        with _visits(job, store, world) as visits:
            report = learn(
                trainer,
                visits,
                loss_of=loss_of,
                recorder=recorder,
                policy=policy,
                journal=Journal(None),
                rate=cooldown(job.placement.student.cooldown),
                progress=progress,
            )
        if soft_labels is not None:
            recorder.check_alive(f"placement {job.name}: transfer.soft_labels")
        write_file(job.folder / WEIGHTS_FILE, to_safetensors(full_tensors(trainer.model)))
        weights_digest = sha256_of(job.folder / WEIGHTS_FILE)
        save_predictions(_predict(job, store, trainer, weights_digest), job.folder / PREDICTIONS_FILE)
    result = StudentResult(
        identity=identity,
        teacher=soft_labels.manifest.teacher.run if soft_labels is not None else None,
        weights_digest=weights_digest,
        num_steps=report.num_steps,
        num_rows=recorder.num_rows,
        seconds=report.seconds,
        soft_label_coverage=recorder.coverage,
        label_loss=recent(recorder.label) if recorder.label else 0.0,
        distillation_loss=recent(recorder.distillation),
    )
    write_json(job.folder / RESULT_FILE, result)
    return result


def build_student(job: StudentJob, world: World, store: Store) -> Trainer:
    """The student with its first parameters: those of its twin of the same seed, and the auxiliary head beside them."""
    torch.manual_seed(job.seed)
    student = job.placement.student
    config = job.placement.transfer.soft_labels
    model = Student(
        job.schema,
        student,
        job.placement.objectives,
        gradient_scale=config.gradient_scale if job.arm == "student" and config is not None else None,
    )
    positions, objectives = _positions(job, store, test=False), job.placement.objectives
    log_odds = first_log_odds(store, job.schema, positions, job.until_us, objectives=objectives)
    with torch.no_grad():
        model.network.head.bias.copy_(log_odds[_places(job)])
    return Trainer(model, world, TrainerConfig(student.dense_learning_rate, student.table_learning_rate))


def student_identity(job: StudentJob, store: Store) -> str:
    """Digest of everything that decides the job's result."""
    soft_labels = job.soft_labels / SOFT_LABEL_MANIFEST
    content: list[Any] = [job.schema.schema_digest(), store.fingerprint, job.until_us, job.arm, job.seed]
    content += [job.placement.model_dump(mode="json", include={"surface", "objectives", "student"})]
    if _learns_from_teacher(job):
        content += [job.placement.transfer.model_dump(mode="json")]
        content += [sha256_of(soft_labels) if soft_labels.is_file() else None]
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def finished_student(job: StudentJob, store: Store) -> StudentResult | None:
    """The result that this very job left, if it is done; that of other settings or of an older version is none."""
    path, weights = job.folder / RESULT_FILE, job.folder / WEIGHTS_FILE
    if not path.is_file() or not weights.is_file():
        return None
    try:
        result = StudentResult(**orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, TypeError):  # no JSON, or other fields than ours
        return None
    same = result.identity == student_identity(job, store) and result.weights_digest == sha256_of(weights)
    return result if same else None


def _remove_others(job: StudentJob, identity: str) -> None:
    """What other settings left in the job's folder goes, so that nobody takes it for this job's."""
    for name in (RESULT_FILE, PREDICTIONS_FILE, WEIGHTS_FILE):
        (job.folder / name).unlink(missing_ok=True)
    for checkpoint in list_checkpoints(job.folder / "checkpoints"):
        if read_manifest(checkpoint).identity.run != identity:
            shutil.rmtree(checkpoint)


def _learns_from_teacher(job: StudentJob) -> bool:
    return job.arm == "student" and job.placement.transfer.soft_labels is not None


def _soft_labels(job: StudentJob, store: Store) -> SoftLabels | None:
    if not _learns_from_teacher(job):
        return None
    return read_soft_labels(
        job.soft_labels, data_fingerprint=store.fingerprint, schema_digest=job.schema.schema_digest()
    )


def _places(job: StudentJob) -> list[int]:
    names = list(job.schema.objectives)
    return [names.index(objective) for objective in job.placement.objectives]


def _positions(job: StudentJob, store: Store, *, test: bool) -> Int64Array:
    period = {"start": job.until_us} if test else {"end": job.until_us}
    return store.select(surfaces=(job.placement.surface,), **period)


def _visits(job: StudentJob, store: Store, world: World) -> Visits:
    return Visits(
        store,
        job.schema,
        _positions(job, store, test=False),
        job.placement.student.batch_requests,
        objectives=job.placement.objectives,
        until_us=job.until_us,
        world=world,
        history_limits=job.placement.student.history_limits(job.schema),
    )


def _loss(
    job: StudentJob, soft_labels: SoftLabels | None, recorder: LossRecorder
) -> Callable[[Visit, tuple[Tensor, Tensor | None]], Tensor]:
    places = _places(job)
    config = job.placement.transfer.soft_labels

    def loss_of(visit: Visit, outputs: tuple[Tensor, Tensor | None]) -> Tensor:
        serving, auxiliary = outputs
        batch = visit.batch
        labels = torch.as_tensor(visit.labels[:, places]).to(serving.device)
        label_loss = masked_cross_entropy(serving, labels, serving.new_ones(len(places)))
        if labels.isfinite().any():
            recorder.label.append(label_loss.detach())
        if not visit.is_first:  # the teacher's scores were learned at the first; the ranks reduce the same gradients
            return label_loss if auxiliary is None else label_loss + 0 * auxiliary.sum()
        if auxiliary is None or soft_labels is None or config is None:
            recorder.count(batch.num_candidates, 0)
            return label_loss
        times = np.repeat(batch.times, np.diff(batch.candidate_offsets))
        soft = soft_labels.of_rows(batch.row_ids, times)[:, places]
        recorder.count(batch.num_candidates, int(np.isfinite(soft).any(axis=1).sum()))
        teacher = torch.as_tensor(soft).to(serving.device)
        soft_loss = distillation_loss(auxiliary, teacher, label_scale=config.label_scale)
        recorder.distillation.append(soft_loss.detach())
        return label_loss + config.weight * soft_loss

    return loss_of


def _predict(job: StudentJob, store: Store, trainer: Trainer, weights_digest: str) -> Predictions:
    batches, probabilities = [], []
    positions, limits = _positions(job, store, test=True), job.placement.student.history_limits(job.schema)
    with Reader(store, job.schema, positions, SCORING_REQUESTS, history_limits=limits) as reader:
        for batch in reader:
            logits, _ = trainer.score(to_tensors(batch, trainer.world.device))
            batches.append(batch)
            probabilities.append(torch.sigmoid(logits.double()).cpu().numpy())
    scored = np.concatenate(probabilities)
    if not np.isfinite(scored).all():
        got = f"{int((~np.isfinite(scored)).sum()):,} of {scored.size:,} that are no numbers"
        remedy = "Lower `dense_learning_rate` or `table_learning_rate` of the placement's student."
        raise UserError(Problem(f"placement {job.name}: {job.arm}, seed {job.seed}", "probabilities", got, remedy))
    return predictions_of(
        batches,
        scored,
        schema=job.schema,
        objectives=job.placement.objectives,
        model_digest=weights_digest,
        data_fingerprint=store.fingerprint,
    )
