"""Trains the foundation model: one pass in time order; every row is scored before it is learned from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import torch.distributed as dist
from torch import Tensor

from eval.artifacts import write_json
from eval.progressive import Stream, StreamMetrics
from foundation.config import FoundationConfig
from foundation.data.batch import Float32Array, RequestBatch
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.numbers import NumberEncoding
from foundation.model.recipes import RECIPES
from foundation.parallel.reduce import of_all_ranks
from foundation.parallel.world import World, joined_world
from foundation.soft_labels import NOTHING_LEARNED, SoftLabelWriter, Teacher
from foundation.training.checkpoint import Identity
from foundation.training.labels import counted_labels
from foundation.training.loss import masked_cross_entropy
from foundation.training.prior import first_log_odds, number_sample
from foundation.training.stream import CheckpointPolicy, Progress, StreamReport, learn
from foundation.training.trainer import OptimizerConfig, Trainer
from foundation.training.visits import Visit, Visits
from serving.errors import Problem, UserError

FORGETTING_STEPS = 200
NO_MATTER = {"threads", "checkpoint_every", "keep_checkpoints"}
"""Settings that say how to run, not what to learn: they may change between a stop and its resume."""


@dataclass(frozen=True, slots=True)
class FoundationJob:
    """What to train on, and where to put it.

    Attributes:
        folder: gets `checkpoints/`, `soft_labels/` and `report.json`.
        until_us: requests before this time are learned from, microseconds since 1970 UTC.
        surfaces: requests of these surfaces only; of every one if None.
    """

    schema: Schema
    config: FoundationConfig
    store: Path
    folder: Path
    until_us: int
    surfaces: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class FoundationReport:
    """What a training run did, and how well it scored each row before it learned from it."""

    stream: StreamReport
    progressive: dict[str, StreamMetrics]


def run_identity(job: FoundationJob, data_fingerprint: str) -> Identity:
    """What a checkpoint of this job, made from the store of a fingerprint, belongs to."""
    content = [job.config.model_dump(mode="json", exclude={"training": NO_MATTER})]
    content += [job.schema.schema_digest(), data_fingerprint, job.until_us]
    content += [job.surfaces] if job.surfaces else []
    run = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Identity(run=run, schema_digest=job.schema.schema_digest(), data_fingerprint=data_fingerprint)


def build_trainer(job: FoundationJob, world: World, store: Store) -> Trainer:
    """The model of the job's recipe with its first parameters, spread over the ranks."""
    torch.manual_seed(job.config.training.seed)
    training = job.config.training
    rates = OptimizerConfig(
        dense_learning_rate=training.dense_learning_rate,
        table_learning_rate=training.table_learning_rate,
        weight_decay=training.weight_decay,
        gradient_clip=training.gradient_clip,
    )
    model = RECIPES[job.config.model.recipe](job.schema, job.config.model)
    positions = store.select(job.surfaces, end=job.until_us)
    log_odds = first_log_odds(store, job.schema, positions, job.until_us)
    of_request, of_candidate = number_sample(store, job.schema, positions)
    for module in model.modules():
        if isinstance(module, SurfaceObjectiveHeads):
            module.start_at(log_odds)
            if training.weighting == "uncertainty":
                module.learn_uncertainties()
        elif isinstance(module, NumberEncoding):
            module.fit(of_request if module.group == "request" else of_candidate)
    return Trainer(model, world, rates)


def train_foundation(job: FoundationJob, progress: Progress | None = None) -> FoundationReport:
    """Train, or go on from the newest checkpoint.

    Raises:
        MismatchError: the store, the schema or the settings changed since the newest checkpoint.
    """
    store = Store.open(job.store, job.schema, verify=True)
    with joined_world(job.config.training.threads) as world:
        trainer = build_trainer(job, world, store)
        identity = run_identity(job, store.fingerprint)
        loss_of = _loss(job, trainer, world)
        recorder = ProgressiveRecorder(job, world)
        with visits_of(job, store, world) as visits:
            report = learn(
                trainer,
                visits,
                loss_of=loss_of,
                recorder=recorder,
                policy=CheckpointPolicy(
                    folder=job.folder / "checkpoints",
                    every_steps=job.config.training.checkpoint_every,
                    keep=job.config.training.keep_checkpoints,
                    identity=identity,
                ),
                progress=progress if world.is_first else None,
            )
        recorder.labels.flush()
        dist.barrier()
        result = FoundationReport(report, recorder.metrics())
        if world.is_first:
            recorder.labels.publish(
                teacher=Teacher(run=identity.run),
                data_fingerprint=identity.data_fingerprint,
                schema_digest=identity.schema_digest,
            )
            write_json(job.folder / "report.json", result)
        return result


def _loss(job: FoundationJob, trainer: Trainer, world: World) -> Callable[[Visit, Tensor], Tensor]:
    weights = torch.tensor([o.weight for o in job.schema.objectives.values()], device=world.device)
    (heads,) = (module for module in trainer.model.modules() if isinstance(module, SurfaceObjectiveHeads))

    def loss_of(visit: Visit, logits: Tensor) -> Tensor:
        labels = torch.as_tensor(visit.labels).to(logits.device)
        return masked_cross_entropy(logits, labels, weights, log_variances=heads.log_variances)

    return loss_of


def visits_of(job: FoundationJob, store: Store, world: World) -> Visits:
    """The pass of a job over its store."""
    return Visits(
        store,
        job.schema,
        store.select(job.surfaces, end=job.until_us),
        job.config.training.batch_requests,
        objectives=tuple(job.schema.objectives),
        until_us=job.until_us,
        world=world,
    )


class ProgressiveRecorder:
    """Progressive metrics by objective, and the progressive soft labels."""

    def __init__(self, job: FoundationJob, world: World) -> None:
        self.schema, self.objectives = job.schema, tuple(job.schema.objectives)
        self.labels = SoftLabelWriter(job.folder / "soft_labels", self.objectives, rank=world.rank)
        self.is_first = world.is_first
        self.exists = job.schema.head_exists()
        self.streams = {name: Stream() for name in self.objectives}
        self.learned_to = NOTHING_LEARNED
        self.recent_loss = 0.0

    def record(self, batch: RequestBatch, outputs: Tensor, loss: Tensor) -> None:
        """Count a batch's scores, made before it was learned from."""
        logits = outputs.detach().cpu().numpy()
        self._check_finite(batch, logits)
        cutoffs = np.full(batch.num_candidates, self.learned_to, dtype=np.int64)
        self.labels.add(batch.row_ids, cutoffs, logits)
        labels = counted_labels(batch, self.schema)
        for place, name in enumerate(self.objectives):
            known = np.isfinite(labels[:, place]) & np.isfinite(logits[:, place])
            self.streams[name].update(labels[known, place], logits[known, place])
        self.learned_to = max(of_all_ranks(int(batch.times.max(initial=self.learned_to))))
        share = 1 / FORGETTING_STEPS
        self.recent_loss += (float(loss) - self.recent_loss) * (share if self.recent_loss else 1.0)

    def _check_finite(self, batch: RequestBatch, logits: Float32Array) -> None:
        """NaN means "no head" further on, so a model that diverged must not get that far."""
        exists = np.repeat(self.exists[batch.surfaces], np.diff(batch.candidate_offsets), axis=0)
        bad = exists & ~np.isfinite(logits)
        if bad.any():
            objective = self.objectives[int(np.flatnonzero(bad.any(axis=0))[0])]
            raise UserError(
                Problem(
                    where=f"training: objective {objective}, from request {int(batch.positions[0])} of the store on",
                    expected="finite scores",
                    got=f"{int(bad.sum()):,} that are no numbers: the model has diverged",
                    remedy="Lower the learning rates of `foundation.training`, and start again with --fresh.",
                )
            )

    def metrics(self) -> dict[str, StreamMetrics]:
        """Of all rows of all ranks so far, by objective."""
        return {name: stream.metrics() for name, stream in self._merged().items()}

    def state(self) -> dict[str, Any]:
        """See `Recorder`."""
        self.labels.flush()
        return {
            "num_parts": self.labels.num_parts,
            "streams": {name: stream.state() for name, stream in self._merged().items()},
            "learned_to": self.learned_to,
            "recent_loss": self.recent_loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Recorder`."""
        self.labels.rewind(state.get("num_parts", 0))
        if state:
            if self.is_first:  # it counts for all ranks so far
                self.streams = {name: Stream.from_state(content) for name, content in state["streams"].items()}
            self.learned_to, self.recent_loss = state["learned_to"], state["recent_loss"]

    def summary(self) -> str:
        """See `Recorder`."""
        first = self.objectives[0]
        metrics = self.streams[first].metrics()
        return f"loss {self.recent_loss:.4f}  {first} NE {metrics.normalized_entropy:.4f} AUC {metrics.auc:.4f}"

    def _merged(self) -> dict[str, Stream]:
        merged = {name: Stream() for name in self.objectives}
        for streams in of_all_ranks(self.streams):
            for name, stream in streams.items():
                merged[name].merge(stream)
        return merged
