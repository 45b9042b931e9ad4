"""Scores any rows with one checkpoint of the foundation model, and writes them to the soft-label store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch.distributed as dist

from eval.artifacts import staged_folder
from foundation.data.reader import Reader
from foundation.data.store import Store, moment_of
from foundation.model.inputs import to_tensors
from foundation.parallel.world import joined_world
from foundation.soft_labels import SoftLabelWriter, Teacher
from foundation.training.checkpoint import (
    check_identity,
    list_checkpoints,
    load_checkpoint,
    read_manifest,
    read_state,
)
from foundation.training.foundation_model import build_trainer, check_cut, checkpoint_at_cut, run_identity, visits_of
from foundation.training.job import FoundationJob
from foundation.training.stream import Progress
from serving.errors import MismatchError, Problem

SCORING_REQUESTS = 512


@dataclass(frozen=True, slots=True)
class LabelJob:
    """Which rows to score, and where to put the scores.

    Attributes:
        foundation: the job whose checkpoint at the cut is the teacher.
        target: folder of the soft-label store.
        from_us: requests at or after this time are scored, microseconds since 1970 UTC.
        surfaces: requests of these surfaces only; of every one if None.
    """

    foundation: FoundationJob
    target: Path
    from_us: int
    surfaces: tuple[str, ...] | None = None


def label(job: LabelJob, progress: Progress | None = None) -> int:
    """Score the rows and return how many; the store is written whole or not at all.

    Raises:
        MismatchError: there is no checkpoint, or it belongs to another store, schema or run, or training has stopped
            before the cut, or the teacher has seen the rows.
    """
    foundation = job.foundation
    store = Store.open(foundation.store, foundation.schema, verify=True)
    checkpoint = frozen_checkpoint(foundation, store.fingerprint)
    manifest, identity = read_manifest(checkpoint), run_identity(foundation, store.fingerprint)
    growth = check_identity(checkpoint, manifest, identity, grown=foundation.schema)
    _refuse_seen_rows(job)
    with joined_world(foundation.config.training.threads) as world:
        trainer = build_trainer(foundation, world, store)
        state = read_state(checkpoint)
        with visits_of(replace(foundation, until_us=foundation.cut), store, world) as visits:
            visits.load_state_dict(state["visits"])  # refuses a log that does not begin with what was learned
        load_checkpoint(checkpoint, tensors=trainer.tensors(), growth=growth)
        learned_to = state["recorder"]["learned_to"]
        positions = store.select(surfaces=job.surfaces, start=job.from_us)
        objectives = tuple(foundation.schema.objectives)
        num_rows = 0
        with (
            staged_folder(job.target) as stage,
            Reader(
                store, foundation.schema, positions, SCORING_REQUESTS, rank=world.rank, world_size=world.size
            ) as reader,
        ):
            total = max(len(reader), 1)
            writer = SoftLabelWriter(stage, objectives, rank=world.rank)
            for step, batch in enumerate(reader, start=1):
                logits = trainer.score(to_tensors(batch, world.device)).cpu().numpy()
                writer.add(batch.row_ids, np.full(batch.num_candidates, learned_to, dtype=np.int64), logits)
                num_rows += batch.num_candidates
                if progress is not None:
                    progress(step / total, f"{num_rows:,} rows")
            writer.flush()
            dist.barrier()
            writer.publish(
                teacher=Teacher(run=identity.run, checkpoint=manifest.digest),
                data_fingerprint=store.fingerprint,
                schema_digest=foundation.schema.schema_digest(),
            )
    return num_rows


def frozen_checkpoint(foundation: FoundationJob, data_fingerprint: str) -> Path:
    """The teacher as it was at the cut, also where it has learned on since.

    Args:
        foundation: the job whose checkpoint it is.
        data_fingerprint: of the store that it must have learned from.

    Raises:
        MismatchError: there is no checkpoint, or it belongs to another store, schema or run, or training has stopped
            before the cut.
    """
    folder = foundation.folder / "checkpoints"
    made = list_checkpoints(folder)
    if not made:
        remedy = "Run `gemcut train` first."
        raise MismatchError(Problem(str(folder), "a checkpoint of the foundation model", "none", remedy))
    at_cut = checkpoint_at_cut(foundation)
    chosen = at_cut or made[-1]
    manifest = read_manifest(chosen)
    check_cut(foundation)
    check_identity(chosen, manifest, run_identity(foundation, data_fingerprint), grown=foundation.schema)
    if at_cut is None:
        expected = f"the model at the training cut, {moment_of(foundation.cut)}, with nothing before it left to learn"
        got = f"training has stopped at step {manifest.step}, before the cut"
        raise MismatchError(Problem(str(chosen), expected, got, "Run `gemcut train`, which goes on from there."))
    return chosen


def _refuse_seen_rows(job: LabelJob) -> None:
    if job.from_us < job.foundation.cut:
        raise MismatchError(
            Problem(
                where="label: rows to score",
                expected=f"requests at or after the training cut, {job.foundation.cut} us",
                got=f"requests from {job.from_us} us on, which the teacher has learned from",
                remedy="Use the progressive scores that `gemcut train` wrote for them.",
            )
        )
