"""Trains the foundation model: one pass in time order; every row is scored before it is learned from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor

from eval.artifacts import write_json
from eval.progressive import StreamMetrics
from foundation.data.store import Store, moment_of
from foundation.data.verified import cache_of
from foundation.goodput.journal import Journal
from foundation.goodput.ranks import RankMeasures, RankMeter
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.numbers import NumberEncoding
from foundation.model.recipes import RECIPES
from foundation.parallel.reduce import of_all_ranks
from foundation.parallel.sharding import Spread
from foundation.parallel.watch import watched
from foundation.parallel.world import World, joined_world
from foundation.soft_labels import Teacher, restamp_soft_labels
from foundation.training.beginning import beginning
from foundation.training.checkpoint import (
    Identity,
    check_identity,
    is_finished,
    list_checkpoints,
    read_manifest,
    read_state,
)
from foundation.training.job import FoundationJob
from foundation.training.lineage import Growth, lineage_of
from foundation.training.loss import masked_cross_entropy
from foundation.training.preemption import Preempted
from foundation.training.progressive import BEFORE_CUT, FROM_CUT, LABELS, ProgressiveRecorder
from foundation.training.rates import constant, inverse_root
from foundation.training.saver import CheckpointPolicy
from foundation.training.stream import Progress, StreamReport, learn
from foundation.training.trainer import Trainer, TrainerConfig
from foundation.training.visits import Visit, Visits
from serving.errors import MismatchError, Problem

JOURNAL_FILE = "journal.jsonl"
NO_MATTER = {"threads", "checkpoint_every", "checkpoint_async", "failures_every", "keep_checkpoints", "timeout"}
"""Settings that say how to run, not what to learn: they may change between a stop and its resume."""


@dataclass(frozen=True, slots=True)
class FoundationReport:
    """What a training run did, and how well it scored each row before it learned from it.

    Attributes:
        progressive: of rows before the cut, by objective.
        progressive_from_cut: of those from the cut on.
        ranks: what each rank did, in their order.
        spread: how the model was spread over them.
    """

    stream: StreamReport
    progressive: dict[str, StreamMetrics]
    progressive_from_cut: dict[str, StreamMetrics]
    ranks: tuple[RankMeasures, ...] = ()
    spread: Spread | None = None


def run_identity(job: FoundationJob, data_fingerprint: str) -> Identity:
    """What a checkpoint of this job, made from the store of a fingerprint, belongs to, however far the job goes."""
    how_to_run = {"training": NO_MATTER, "parallel": True}
    config: dict[str, dict[str, Any]] = job.config.model_dump(mode="json", exclude=how_to_run)
    content = [config, job.schema.schema_digest(), data_fingerprint, job.cut]
    content += [job.surfaces] if job.surfaces else []
    settings = {f"foundation.{part}.{name}": value for part, of in config.items() for name, value in of.items()}
    return Identity(
        run=hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        schema_digest=job.schema.schema_digest(),
        data_fingerprint=data_fingerprint,
        lineage=lineage_of(job.schema, settings | {"surfaces of the job": job.surfaces}),
    )


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
        accumulate=training.accumulate,
        table_optimizer=training.table_optimizer,
        parallel=job.config.parallel,
        plans=cache_of(store.folder),
    )
    model = RECIPES[job.config.model.recipe](job.schema, job.config.model)
    positions = store.select(job.surfaces, end=job.cut)
    start = beginning(store, job.schema, positions, job.cut)
    for module in model.modules():
        if isinstance(module, SurfaceObjectiveHeads):
            module.start_at(start.log_odds)
            if training.weighting == "uncertainty":
                module.learn_uncertainties()
        elif isinstance(module, NumberEncoding):
            module.fit(start.request_edges if module.group == "request" else start.candidate_edges)
    return Trainer(model, world, config)


def train_foundation(
    job: FoundationJob, progress: Progress | None = None, *, started_s: float | None = None
) -> FoundationReport:
    """Train to the cut, then on to the end of the job; or go on from the newest checkpoint.

    A run that was begun with a later end goes on to that one. The store may have more than it had, and so may the
    schema, as `growth` says.

    Args:
        job: what to learn.
        progress: told after each step.
        started_s: when this training was asked for, seconds since 1970 UTC, where the process has done other work
            before; when the process was made if None.

    Raises:
        MismatchError: the store, the schema or the settings changed otherwise since the newest checkpoint.
    """
    path = job.folder / JOURNAL_FILE if os.environ.get("RANK", "0") == "0" else None
    journal = Journal(path) if started_s is None else Journal(path, started_s=started_s)
    journal.phase("imports")
    store = Store.open(job.store, job.schema, verify=True)
    journal.phase("store")
    training = job.config.training
    with watched(journal, training.timeout), joined_world(training.threads, training.timeout) as world:
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
        ranks, spread = tuple(of_all_ranks(own)), trainer.sharded.spread
        report = replace(reports[-1], stream=stream, ranks=ranks, spread=spread)
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
        rows = {name: metrics["num_rows"] for name, metrics in told["progressive"].items()}
        same_cut = rows == {name: metrics.num_rows for name, metrics in report.progressive.items()}
        if told["stream"]["num_steps"] == report.stream.num_steps and same_cut:
            return
    write_json(path, report)


def checkpoint_at_cut(job: FoundationJob) -> Path | None:
    """The model that has learned all of the training period, and nothing that was known only after the cut."""
    for path in reversed(list_checkpoints(job.folder / "checkpoints")):
        state = read_state(path)
        until_us = state["recorder"]["until_us"]
        if until_us <= job.cut:
            return path if until_us == job.cut and is_finished(state) else None
    return None


def growth(job: FoundationJob, data_fingerprint: str) -> Growth:
    """How many values were added to each table since the newest checkpoint, from which the job can be gone on.

    Raises:
        MismatchError: it can not, by what it says of itself; the store is not looked at.
    """
    found = list_checkpoints(job.folder / "checkpoints")
    if not found:
        return {}
    check_cut(job)
    return check_identity(found[-1], read_manifest(found[-1]), run_identity(job, data_fingerprint), grown=job.schema)


def check_cut(job: FoundationJob) -> None:
    """Refuse a cut that was moved to where training has been already: no model would have stopped there.

    Raises:
        MismatchError: it was.
    """
    found = list_checkpoints(job.folder / "checkpoints")
    was = read_state(found[-1])["recorder"] if found else {"cut_us": job.cut, "until_us": job.cut}
    if job.cut != was["cut_us"] and job.cut < was["until_us"]:
        cut, until = moment_of(was["cut_us"]), moment_of(was["until_us"])
        expected = f"{cut} as before, or from {until} on, to where training has gone"
        remedy = "Correct it, or start again with `gemcut train --fresh`."
        raise MismatchError(Problem("split.test_from", expected, moment_of(job.cut), remedy))


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
    check_cut(part)
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
                grown=job.schema,
            ),
            journal=run.journal,
            rate=inverse_root(training.decay_steps) if training.decay_steps else constant,
            progress=run.progress,
        )
    recorder.labels.flush()
    dist.barrier()
    result = FoundationReport(report, recorder.metrics(BEFORE_CUT), recorder.metrics(FROM_CUT))
    if world.is_first:
        stamps = {"data_fingerprint": identity.data_fingerprint, "schema_digest": identity.schema_digest}
        recorder.labels.publish(teacher=Teacher(run=identity.run), **stamps)
        if recorder.period == FROM_CUT:  # what was scored earlier is of this store too, which begins with what was read
            restamp_soft_labels(part.folder / LABELS[BEFORE_CUT], teacher=Teacher(run=identity.run), **stamps)
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
