"""The foundation model's scores of the test rows: still learning, and frozen at the cut, both out of one training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from benchmarks.network import probabilities_of
from benchmarks.opened import Opened, kept
from benchmarks.rows import predictions_from
from eval.artifacts import write_json
from eval.predictions import Predictions, save_predictions
from foundation.soft_labels import read_soft_labels
from foundation.training.foundation_model import checkpoint_at_cut, run_identity, train_foundation
from foundation.training.job import FoundationJob
from foundation.training.progressive import FROM_CUT, LABELS
from transfer.label import LabelJob, label

Progress = Callable[[float, str], None]
FROZEN, PROGRESSIVE = "frozen", "progressive"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to score.

    Attributes:
        seed: of the first parameters.
        frozen: also score by the model as it was at the cut.
        surfaces: learn from requests of these alone; of all if None.
    """

    seed: int
    frozen: bool = True
    surfaces: tuple[str, ...] | None = None


def score_foundation(
    project: Opened, wanted: Wanted, folder: Path, progress: Progress | None = None
) -> dict[str, Predictions]:
    """Predictions of the test rows by protocol; what an earlier call has left in the folder is taken or gone on from.

    Args:
        project: whose foundation model is trained.
        wanted: seed, protocols, surfaces.
        folder: gets `progressive.parquet`, `frozen.parquet` and `speed.json`, and holds checkpoints while training.
        progress: is told how far each training is.
    """
    job, fingerprint = _job(project, wanted, folder / "run"), project.store.fingerprint
    labels_of = {PROGRESSIVE: _trained} | ({FROZEN: _frozen} if wanted.frozen else {})
    found: dict[str, Predictions] = {}
    for protocol, labels in labels_of.items():
        path, digest = folder / f"{protocol}.parquet", _digest(job, fingerprint)
        table = kept(path, digest, fingerprint)
        if table is None:
            table = _predictions(project, job, labels(job, progress))
            save_predictions(table, path)
        found[protocol] = table
    shutil.rmtree(job.folder, ignore_errors=True)
    return found


def _job(project: Opened, wanted: Wanted, folder: Path) -> FoundationJob:
    schema = project.loaded.project
    training = schema.foundation.training.model_copy(update={"seed": wanted.seed})
    config = schema.foundation.model_copy(update={"training": training})
    cut, end = project.until_us, project.end_us
    return FoundationJob(schema, config, project.store.folder, folder, end, wanted.surfaces, cut_us=cut)


def _trained(job: FoundationJob, progress: Progress | None) -> Path:
    """Train to the end of the log; the progressive soft labels from the cut on."""
    stream = train_foundation(job, progress).stream
    if stream.has_learned:
        speed = {"rows_per_s": stream.num_rows / stream.seconds, "seconds": stream.seconds}
        write_json(job.folder.parent / "speed.json", speed)
    return job.folder / LABELS[FROM_CUT]


def _frozen(job: FoundationJob, progress: Progress | None) -> Path:
    """Score what follows the cut with the model as it was there, training to it where that was not done; its labels."""
    if checkpoint_at_cut(job) is None:
        train_foundation(replace(job, until_us=job.cut), progress)
    target = job.folder / "test_labels"
    label(LabelJob(job, target, job.cut), progress)
    return target


def _predictions(project: Opened, job: FoundationJob, labels: Path) -> Predictions:
    store, rows, schema = project.store, project.rows, job.schema
    scores = read_soft_labels(labels, data_fingerprint=store.fingerprint, schema_digest=schema.schema_digest())
    logits = scores.of_rows(rows.row_ids[project.cut :], rows.times[project.cut :])
    chances = {name: probabilities_of(logits[:, place]) for place, name in enumerate(schema.objectives)}
    return predictions_from(rows, project.cut, chances, model_digest=_digest(job, store.fingerprint))


def _digest(job: FoundationJob, data_fingerprint: str) -> str:
    """Of a run and its end: what it scored."""
    return sha256(f"{run_identity(job, data_fingerprint).run} {job.until_us}".encode()).hexdigest()
