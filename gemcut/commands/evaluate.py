"""`gemcut evaluate`: student beside twin beside teacher on the test period, and the report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from eval.artifacts import write_json
from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.tracking import start_run
from gemcut.workspace import Workspace
from serving.errors import MismatchError, Problem

if TYPE_CHECKING:
    from eval.predictions import Predictions
    from eval.report import PlacementResult
    from foundation.data.store import Store
    from foundation.soft_labels import SoftLabels
    from serving.bundle import Bundle
    from serving.gate.report import Verdict
    from serving.manifest import Manifest

MODELS = ("student", "twin", "teacher")
METRICS_FILE = "metrics.json"


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What is known of one placement.

    Attributes:
        seeds: for each seed the predictions of student, twin and teacher on the same rows.
        served: what the bundle says, None if none of these students was exported.
        reasons: why something is missing, as `PlacementResult` has it.
    """

    seeds: tuple[dict[str, Predictions], ...]
    served: Predictions | None
    manifest: Manifest | None
    verdict: Verdict | None
    reasons: dict[str, str]


def evaluate(loaded: LoadedProject, screen: Screen, *, placements: Sequence[str]) -> dict[str, Any]:
    """Compare, print the table, write `report/`, and log to MLflow."""
    from eval.report import as_json, print_report
    from eval.report_page import write_report

    space = Workspace(loaded)
    results: list[PlacementResult] = []
    metrics: dict[str, Any] = {}
    with screen.progress("evaluate") as tell:
        teacher = _teacher(space)
        for done, placement in enumerate(placements):
            tell(done / len(placements), placement)
            evidence = _evidence(space, placement, teacher)
            results += _results(loaded, placement, evidence)
            metrics[placement] = _metrics(evidence)
    write_json(space.report / METRICS_FILE, metrics)
    page = write_report(results, space.report, title=loaded.project.name)
    _track(loaded, space, results)
    print_report(results, screen.people if screen.people.is_terminal else Console(width=150, file=sys.stderr))
    screen.say(f"report: {page}")
    return {"placements": [as_json(result) for result in results], "metrics": metrics}


def _teacher(space: Workspace) -> SoftLabels:
    """Scores by the model at the cut; where its checkpoint is gone, by any of the same run."""
    from foundation.data.store import read_manifest as read_store_manifest
    from foundation.soft_labels import read_soft_labels
    from foundation.training.checkpoint import read_manifest
    from foundation.training.foundation_model import checkpoint_at_cut, run_identity

    job = space.foundation_job()
    identity = run_identity(job, read_store_manifest(space.store).fingerprint)
    at_cut = checkpoint_at_cut(job)
    return read_soft_labels(
        space.test_labels,
        data_fingerprint=identity.data_fingerprint,
        schema_digest=identity.schema_digest,
        run=identity.run,
        checkpoint=read_manifest(at_cut).digest if at_cut else None,
        remedy="Run `gemcut label`.",
    )


def _evidence(space: Workspace, placement: str, teacher: SoftLabels) -> _Evidence:
    from foundation.data.store import Store
    from transfer.export import CURRENT_FILE
    from transfer.serve_log import served_predictions

    store = Store.open(space.store, space.loaded.project, verify=True)
    seeds = tuple(_seeds(space, store, placement, teacher=teacher))
    bundle = _bundle(space, store, placement)
    verdict = _verdict(space, placement, bundle)
    served = None
    if bundle is not None:
        job = space.student_job(placement, bundle.manifest.provenance.seed, "student")
        served = served_predictions(bundle.folder, job)
    reasons: dict[str, str] = {}
    if bundle is None and (space.bundles(placement) / CURRENT_FILE).is_file():
        reasons["parity"] = "the bundle is of an earlier student: run `gemcut export` again"
    if verdict is None and space.verdict(placement).is_file():
        note = "the verdict is on another bundle or budget, or of another version: run `gemcut gate` again"
        reasons["latency"] = reasons["verdict"] = note
    return _Evidence(seeds, served, bundle.manifest if bundle else None, verdict, reasons)


def _bundle(space: Workspace, store: Store, placement: str) -> Bundle | None:
    """The newest bundle, if the student it was made of is still the one that is evaluated."""
    from serving.bundle import load_bundle
    from transfer.distill import finished_student
    from transfer.export import CURRENT_FILE, current_bundle

    if not (space.bundles(placement) / CURRENT_FILE).is_file():
        return None
    bundle = load_bundle(current_bundle(space.bundles(placement)))
    origin = bundle.manifest.provenance
    student = finished_student(space.student_job(placement, origin.seed, "student"), store)
    return bundle if student is not None and student.weights_digest == origin.student_digest else None


def _verdict(space: Workspace, placement: str, bundle: Bundle | None) -> Verdict | None:
    """The newest verdict, if it is on this very bundle and budget: quality and latency are of the same files."""
    from pydantic import ValidationError

    from serving.gate.report import Verdict

    file = space.verdict(placement)
    if bundle is None or not file.is_file():
        return None
    try:
        verdict = Verdict.model_validate_json(file.read_bytes())
    except ValidationError:  # no JSON, or of another version of gemcut
        return None
    budget = space.loaded.project.placements[placement].budget
    return verdict if (verdict.record.bundle_digest, verdict.budget) == (bundle.digest, budget) else None


def _seeds(space: Workspace, store: Store, placement: str, *, teacher: SoftLabels) -> Iterator[dict[str, Predictions]]:
    """Predictions of every seed whose student and twin are both done, with the settings of now."""
    from eval.predictions import load_predictions
    from transfer.distill import ARMS, PREDICTIONS_FILE, finished_student

    folder, found = space.work / "students" / placement, 0
    for seed in sorted(int(path.name.removeprefix("seed-")) for path in folder.glob("seed-*")):
        jobs = {arm: space.student_job(placement, seed, arm) for arm in ARMS}
        results = {arm: finished_student(job, store) for arm, job in jobs.items()}
        both = {
            arm: load_predictions(jobs[arm].folder / PREDICTIONS_FILE, model_digest=result.weights_digest)
            for arm, result in results.items()
            if result is not None
        }
        if len(both) == len(ARMS):
            found += 1
            yield both | {"teacher": _teacher_predictions(both["student"], teacher)}
    if not found:
        got = "none that is done with the settings, soft labels and rows of now"
        remedy = f"Run `gemcut distill --placement {placement}` first."
        raise MismatchError(Problem(str(folder), "a student and its twin", got, remedy))


def _teacher_predictions(student: Predictions, teacher: SoftLabels) -> Predictions:
    """The teacher's scores of the student's rows and objectives."""
    logits = teacher.of_rows(student.row_id, student.time).astype(np.float64)
    places = {name: place for place, name in enumerate(teacher.manifest.objectives)}
    with np.errstate(over="ignore"):
        probabilities = {name: 1 / (1 + np.exp(-logits[:, places[name]])) for name in student.objectives}
    return replace(student, probabilities=probabilities, model_digest=teacher.manifest.teacher)


def _results(loaded: LoadedProject, placement: str, evidence: _Evidence) -> list[PlacementResult]:
    from eval.compare import compare, compare_seeds
    from eval.metrics.calibration import calibration_curve
    from eval.report import PlacementResult

    config = loaded.project.placements[placement]
    loop = evidence.verdict.open_loop if evidence.verdict else None
    results: list[PlacementResult] = []
    for objective in config.objectives:
        compared = [
            compare(seed["student"], seed["twin"], seed["teacher"], objective=objective) for seed in evidence.seeds
        ]
        tables = {model: evidence.seeds[0][model].scored(objective) for model in MODELS}
        results.append(
            PlacementResult(
                placement=placement,
                surface=config.surface,
                objective=objective,
                budget=config.budget,
                comparison=compare_seeds(compared),
                parity_error=evidence.manifest.parity.largest_error[objective] if evidence.manifest else None,
                parity_tolerance=evidence.manifest.parity.tolerance if evidence.manifest else None,
                latency_ms={name: getattr(loop, f"{name}_ms") for name in ("p50", "p90", "p95", "p99", "max")}
                if loop
                else {},
                verdict=evidence.verdict.verdict if evidence.verdict else None,
                verdict_reasons=evidence.verdict.reasons if evidence.verdict else (),
                reasons=evidence.reasons,
                calibration={
                    model: calibration_curve(table.labels[objective], table.probabilities[objective])
                    for model, table in tables.items()
                },
            )
        )
    return results


def _metrics(evidence: _Evidence) -> dict[str, Any]:
    """NE, AUC, gAUC and calibration with intervals, of the first seed's models and of the bundle itself."""
    from eval.score import evaluate as score

    tables = dict(evidence.seeds[0]) | ({"bundle": evidence.served} if evidence.served is not None else {})
    return {
        model: {objective: asdict(score(table, objective)) for objective in evidence.seeds[0]["student"].objectives}
        for model, table in tables.items()
    }


def _track(loaded: LoadedProject, space: Workspace, results: Sequence[PlacementResult]) -> None:
    """One child run a placement, with the figures of the report and the report itself."""
    for placement in dict.fromkeys(result.placement for result in results):
        with start_run(loaded, space.work / "students" / placement, name=placement) as tracker:
            for result in (result for result in results if result.placement == placement):
                values = {f"latency_ms/{name}": value for name, value in result.latency_ms.items()}
                for model in MODELS:
                    for metric in ("ne", "auc"):
                        estimate = result.estimate(metric, model)
                        if estimate is not None:
                            values[f"{metric}/{model}/{result.objective}"] = estimate.mean
                if result.parity_error is not None:
                    values[f"parity_error/{result.objective}"] = result.parity_error
                if result.comparison is not None and result.comparison.transfer_ratio.value is not None:
                    values[f"transfer_ratio/{result.objective}"] = result.comparison.transfer_ratio.value
                tracker.log_metrics(values, step=0)
                tracker.log_tags({"gemcut.verdict": result.verdict or "none"})
            if space.verdict(placement).is_file():
                tracker.log_artifact(space.verdict(placement))
            for file in (METRICS_FILE, "report.json", "report.html"):
                tracker.log_artifact(space.report / file)
