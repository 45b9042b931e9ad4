"""The foundation model's scores of the test rows: still learning, and frozen at the cut, both out of one training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.network import probabilities_of
from benchmarks.opened import Opened, kept
from benchmarks.rows import predictions_from
from eval.artifacts import staged_folder, write_json
from eval.predictions import Predictions, save_predictions
from foundation.soft_labels import read_soft_labels
from foundation.training.checkpoint import MANIFEST_FILE, list_checkpoints, read_manifest
from foundation.training.foundation_model import FoundationJob, run_identity, train_foundation
from transfer.label import LabelJob, label

Progress = Callable[[float, str], None]
FROZEN, PROGRESSIVE = "frozen", "progressive"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to score.

    Attributes:
        seed: of the first parameters.
        frozen: also score by the model as it was at the cut; without, training does not stop there.
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
    at_cut = _job(project, wanted, folder / "to_cut", project.until_us)
    at_end = _job(project, wanted, folder / "to_end", project.store.manifest.last_time + 1)
    found: dict[str, Predictions] = {}
    for protocol, job in {FROZEN: at_cut, PROGRESSIVE: at_end}.items():
        if protocol == PROGRESSIVE or wanted.frozen:
            path = folder / f"{protocol}.parquet"
            digest = run_identity(job, project.store.fingerprint).run
            table = kept(path, digest, project.store.fingerprint)
            if table is None:
                labels = _frozen(at_cut, progress) if protocol == FROZEN else _to_the_end(at_cut, at_end, progress)
                table = _predictions(project, job, labels)
                save_predictions(table, path)
            found[protocol] = table
    for job in (at_cut, at_end):
        shutil.rmtree(job.folder, ignore_errors=True)
    return found


def _job(project: Opened, wanted: Wanted, folder: Path, until_us: int) -> FoundationJob:
    schema = project.loaded.project
    training = schema.foundation.training.model_copy(update={"seed": wanted.seed})
    config = schema.foundation.model_copy(update={"training": training})
    return FoundationJob(schema, config, project.store.folder, folder, until_us, wanted.surfaces)


def _frozen(at_cut: FoundationJob, progress: Progress | None) -> Path:
    """Train to the cut and score what follows; the soft labels of it."""
    train_foundation(at_cut, progress)
    target = at_cut.folder / "test_labels"
    label(LabelJob(at_cut, target, at_cut.until_us), progress)
    return target


def _to_the_end(at_cut: FoundationJob, at_end: FoundationJob, progress: Progress | None) -> Path:
    """Train to the end of the log, from the cut on where that was trained; the progressive soft labels."""
    if not at_end.folder.exists() and list_checkpoints(at_cut.folder / "checkpoints"):
        fork(at_cut, at_end)
    report = train_foundation(at_end, progress)
    speed = {"rows_per_s": report.stream.num_rows / report.stream.seconds, "seconds": report.stream.seconds}
    write_json(at_end.folder.parent / "speed.json", speed)
    return at_end.folder / "soft_labels"


def fork(source: FoundationJob, target: FoundationJob) -> None:
    """Let a job begin where another that learned from the first of the same requests has ended.

    A checkpoint belongs to one job: its period is part of what it is. The copy is given to the longer one; whether what
    was read is the beginning of what is to be read, the reader checks when it goes on.
    """
    with staged_folder(target.folder) as stage:
        newest = list_checkpoints(source.folder / "checkpoints")[-1]
        shutil.copytree(newest, stage / "checkpoints" / newest.name)
        shutil.copytree(source.folder / "soft_labels", stage / "soft_labels")
        manifest = read_manifest(newest)
        identity = run_identity(target, manifest.identity.data_fingerprint)
        content = manifest.model_copy(update={"identity": identity}).model_dump(mode="json")
        write_json(stage / "checkpoints" / newest.name / MANIFEST_FILE, content)


def _predictions(project: Opened, job: FoundationJob, labels: Path) -> Predictions:
    store, rows, schema = project.store, project.rows, job.schema
    scores = read_soft_labels(labels, data_fingerprint=store.fingerprint, schema_digest=schema.schema_digest())
    logits = scores.of_rows(rows.row_ids[project.cut :], rows.times[project.cut :])
    chances = {name: probabilities_of(logits[:, place]) for place, name in enumerate(schema.objectives)}
    return predictions_from(rows, project.cut, chances, model_digest=run_identity(job, store.fingerprint).run)
