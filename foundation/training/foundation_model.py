"""Trains the foundation model: one pass in time order; every row is scored before it is learned from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
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
from foundation.goodput.journal import Journal
from foundation.goodput.ranks import RankMeasures, RankMeter
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.numbers import NumberEncoding
from foundation.model.recipes import RECIPES
from foundation.parallel.reduce import of_all_ranks
from foundation.parallel.world import World, joined_world
from foundation.soft_labels import NOTHING_LEARNED, SoftLabelWriter, Teacher
from foundation.training.checkpoint import Identity, is_finished, list_checkpoints, read_state
from foundation.training.labels import counted_labels
from foundation.training.loss import masked_cross_entropy
from foundation.training.preemption import Preempted
from foundation.training.prior import first_log_odds, number_sample
from foundation.training.rates import constant, inverse_root
from foundation.training.saver import CheckpointPolicy
from foundation.training.stream import Progress, StreamReport, learn
from foundation.training.trainer import Trainer, TrainerConfig
from foundation.training.visits import Visit, Visits
from serving.errors import Problem, UserError

FORGETTING_STEPS = 200
BEFORE_CUT, FROM_CUT = "before_cut", "from_cut"
JOURNAL_FILE = "journal.jsonl"
LABELS = {BEFORE_CUT: "soft_labels", FROM_CUT: "soft_labels_from_cut"}
NO_MATTER = {"threads", "checkpoint_every", "checkpoint_async", "failures_every", "keep_checkpoints"}
"""Settings that say how to run, not what to learn: they may change between a stop and its resume."""


@dataclass(frozen=True, slots=True)
class FoundationJob:
    """What to train on, and where to put it.

    Attributes:
        folder: gets `checkpoints/`, `report.json`, `soft_labels/` of rows before the cut, and `soft_labels_from_cut/`.
        until_us: requests before this time are learned from, microseconds since 1970 UTC.
        surfaces: requests of these surfaces only; of every one if None.
        cut_us: where the training period ends and a checkpoint stays, at most `until_us`, which it is if None.
    """

    schema: Schema
    config: FoundationConfig
    store: Path
    folder: Path
    until_us: int
    surfaces: tuple[str, ...] | None = None
    cut_us: int | None = None

    @property
    def cut(self) -> int:
        """The training cut."""
        return self.until_us if self.cut_us is None else self.cut_us


@dataclass(frozen=True, slots=True)
class FoundationReport:
    """What a training run did, and how well it scored each row before it learned from it.

    Attributes:
        progressive: of rows before the cut, by objective.
        progressive_from_cut: of those from the cut on.
        ranks: what each rank did, in their order.
    """

    stream: StreamReport
    progressive: dict[str, StreamMetrics]
    progressive_from_cut: dict[str, StreamMetrics]
    ranks: tuple[RankMeasures, ...] = ()


def run_identity(job: FoundationJob, data_fingerprint: str) -> Identity:
    """What a checkpoint of this job, made from the store of a fingerprint, belongs to, however far the job goes."""
    content = [job.config.model_dump(mode="json", exclude={"training": NO_MATTER})]
    content += [job.schema.schema_digest(), data_fingerprint, job.cut]
    content += [job.surfaces] if job.surfaces else []
    run = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Identity(run=run, schema_digest=job.schema.schema_digest(), data_fingerprint=data_fingerprint)


def build_trainer(job: FoundationJob, world: World, store: Store) -> Trainer:
    """The model of the job's recipe with its first parameters, spread over the ranks."""
    torch.manual_seed(job.config.training.seed)
    training = job.config.training
    config = TrainerConfig(
        dense_learning_rate=training.dense_learning_rate,
        table_learning_rate=training.table_learning_rate,
        weight_decay=training.weight_decay,
        gradient_clip=training.gradient_clip,
        matmul=getattr(torch, training.precision),
        average_steps=training.average_steps,
    )
    model = RECIPES[job.config.model.recipe](job.schema, job.config.model)
    positions = store.select(job.surfaces, end=job.cut)
    log_odds = first_log_odds(store, job.schema, positions, job.cut)
    of_request, of_candidate = number_sample(store, job.schema, positions)
    for module in model.modules():
        if isinstance(module, SurfaceObjectiveHeads):
            module.start_at(log_odds)
            if training.weighting == "uncertainty":
                module.learn_uncertainties()
        elif isinstance(module, NumberEncoding):
            module.fit(of_request if module.group == "request" else of_candidate)
    return Trainer(model, world, config)


def train_foundation(job: FoundationJob, progress: Progress | None = None) -> FoundationReport:
    """Train to the cut, then on to the end of the job; or go on from the newest checkpoint.

    A run that was begun with a later end goes on to that one.

    Raises:
        MismatchError: the store, the schema or the settings changed since the newest checkpoint.
    """
    journal = Journal(job.folder / JOURNAL_FILE if os.environ.get("RANK", "0") == "0" else None)
    journal.phase("imports")
    store = Store.open(job.store, job.schema, verify=True)
    journal.phase("store")
    with joined_world(job.config.training.threads) as world:
        journal.phase("process group")
        trainer = build_trainer(job, world, store)
        journal.phase("plan and build")
        run = _Run(job, trainer, store, journal, progress if world.is_first else None)
        try:
            with RankMeter(world.device) as meter:
                reports = [_train_until(end, run) for end in _ends(job)]
        except Preempted as stop:
            journal.ended(stop.step, how="preempted")
            raise
        journal.ended(reports[-1].stream.num_steps, how="finished")
        stream = reduce(StreamReport.and_then, [part.stream for part in reports])
        own = meter.measures(num_rows=stream.num_rows_learned, data_wait_s=stream.data_wait_seconds)
        report = replace(reports[-1], stream=stream, ranks=tuple(of_all_ranks(own)))
        if world.is_first:
            _write_report(job.folder / "report.json", report)
        return report


@dataclass(frozen=True, slots=True)
class _Run:
    """What the parts of a pass share."""

    job: FoundationJob
    trainer: Trainer
    store: Store
    journal: Journal
    progress: Progress | None


def _write_report(path: Path, report: FoundationReport) -> None:
    """A run that had nothing left to learn leaves what the one that learned has reported, and how long that took."""
    if not report.stream.has_learned and path.is_file():
        told = orjson.loads(path.read_bytes())
        if told["stream"]["num_steps"] == report.stream.num_steps:
            return
    write_json(path, report)


def checkpoint_at_cut(job: FoundationJob) -> Path | None:
    """The model that has learned all of the training period, and nothing that was known only after the cut."""
    for path in reversed(list_checkpoints(job.folder / "checkpoints")):
        state = read_state(path)
        if state["recorder"]["until_us"] <= job.cut:
            return path if is_finished(state) else None
    return None


def end_of_training(job: FoundationJob) -> int:
    """Where training ends, microseconds since 1970 UTC: where the job says, or where it was begun to go, if later."""
    return max(job.until_us, _begun_until(job))


def _ends(job: FoundationJob) -> list[int]:
    """Where each part of the pass that is left ends: at the cut, so that a checkpoint is made there, and at the end."""
    assert job.cut <= job.until_us, f"the cut {job.cut} is after the end {job.until_us}"
    begun = _begun_until(job)
    return [end for end in sorted({job.cut, end_of_training(job)}) if end >= begun]


def _begun_until(job: FoundationJob) -> int:
    """The end that the newest checkpoint's run had set out for; the cut if there is none."""
    found = list_checkpoints(job.folder / "checkpoints")
    return read_state(found[-1])["recorder"]["until_us"] if found else job.cut


def _train_until(end: int, run: _Run) -> FoundationReport:
    """One part of the pass, on one side of the cut, and its soft labels."""
    job, trainer, store = run.job, run.trainer, run.store
    part, world, training = replace(job, cut_us=job.cut, until_us=end), trainer.world, job.config.training
    identity = run_identity(part, store.fingerprint)
    at_cut = checkpoint_at_cut(part) if end > part.cut else None
    recorder = ProgressiveRecorder(part, world)
    with visits_of(part, store, world) as visits:
        report = learn(
            trainer,
            visits,
            loss_of=_loss(part, trainer, world),
            recorder=recorder,
            policy=CheckpointPolicy(
                folder=part.folder / "checkpoints",
                every=training.checkpoint_every,
                keep=training.keep_checkpoints,
                identity=identity,
                always=at_cut.name if at_cut else None,
                in_background=training.checkpoint_async,
                failures_every_s=training.failures_every.total_seconds() if training.failures_every else None,
            ),
            journal=run.journal,
            rate=inverse_root(training.decay_steps) if training.decay_steps else constant,
            progress=run.progress,
        )
    recorder.labels.flush()
    dist.barrier()
    result = FoundationReport(report, recorder.metrics(BEFORE_CUT), recorder.metrics(FROM_CUT))
    if world.is_first:
        recorder.labels.publish(
            teacher=Teacher(run=identity.run),
            data_fingerprint=identity.data_fingerprint,
            schema_digest=identity.schema_digest,
        )
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
    """Progressive metrics by period and objective, and the progressive soft labels of the job's last period."""

    def __init__(self, job: FoundationJob, world: World) -> None:
        self.schema, self.objectives = job.schema, tuple(job.schema.objectives)
        self.until_us = job.until_us
        self.period = FROM_CUT if job.until_us > job.cut else BEFORE_CUT
        self.labels = SoftLabelWriter(job.folder / LABELS[self.period], self.objectives, rank=world.rank)
        self.is_first = world.is_first
        self.exists = job.schema.head_exists()
        self.streams = {period: {name: Stream() for name in self.objectives} for period in LABELS}
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
            self.streams[self.period][name].update(labels[known, place], logits[known, place])
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

    def metrics(self, period: str) -> dict[str, StreamMetrics]:
        """Of all rows of a period and all ranks so far, by objective."""
        return {name: stream.metrics() for name, stream in self._merged()[period].items()}

    def state(self) -> dict[str, Any]:
        """See `Recorder`."""
        self.labels.flush()
        return {
            "until_us": self.until_us,
            "period": self.period,
            "num_parts": self.labels.num_parts,
            "streams": {
                period: {name: stream.state() for name, stream in streams.items()}
                for period, streams in self._merged().items()
            },
            "learned_to": self.learned_to,
            "recent_loss": self.recent_loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Recorder`."""
        same_period = state.get("period") == self.period
        self.labels.rewind(state["num_parts"] if same_period else 0)
        if state:
            if self.is_first:  # it counts for all ranks so far
                self.streams = {
                    period: {name: Stream.from_state(content) for name, content in streams.items()}
                    for period, streams in state["streams"].items()
                }
            self.learned_to, self.recent_loss = state["learned_to"], state["recent_loss"]

    def summary(self) -> str:
        """See `Recorder`."""
        first = self.objectives[0]
        metrics = self.streams[self.period][first].metrics()
        return f"loss {self.recent_loss:.4f}  {first} NE {metrics.normalized_entropy:.4f} AUC {metrics.auc:.4f}"

    def _merged(self) -> dict[str, dict[str, Stream]]:
        merged = {period: {name: Stream() for name in self.objectives} for period in LABELS}
        for periods in of_all_ranks(self.streams):
            for period, streams in periods.items():
                for name, stream in streams.items():
                    merged[period][name].merge(stream)
        return merged
