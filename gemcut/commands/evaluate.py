"""`gemcut evaluate`: student beside twin beside teacher on the test period, and the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
    from foundation.soft_labels import SoftLabels
    from serving.gate.report import Verdict
    from serving.manifest import Manifest

MODELS = ("student", "twin", "teacher")
METRICS_FILE = "metrics.json"


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What is known of one placement.

    Attributes:
        seeds: for each seed the predictions of student, twin and teacher on the same rows.
        served: what the bundle says, None if nothing was exported.
    """

    seeds: tuple[dict[str, Predictions], ...]
    served: Predictions | None
    manifest: Manifest | None
    verdict: Verdict | None


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
    from foundation.data.store import read_manifest
    from foundation.soft_labels import read_soft_labels

    schema = space.loaded.project
    fingerprint = read_manifest(space.store).fingerprint
    return read_soft_labels(space.test_labels, data_fingerprint=fingerprint, schema_digest=schema.schema_digest())


def _evidence(space: Workspace, placement: str, teacher: SoftLabels) -> _Evidence:
    from serving.bundle import load_bundle
    from serving.gate.report import Verdict
    from transfer.export import CURRENT_FILE, current_bundle
    from transfer.serve_log import served_predictions

    bundles, verdict = space.bundles(placement), space.verdict(placement)
    exported = (bundles / CURRENT_FILE).is_file()
    bundle = current_bundle(bundles) if exported else None
    manifest = load_bundle(bundle).manifest if bundle else None
    seed = manifest.provenance.seed if manifest else 0
    return _Evidence(
        seeds=tuple(_seeds(space, placement, teacher)),
        served=served_predictions(bundle, space.student_job(placement, seed, "student")) if bundle else None,
        manifest=manifest,
        verdict=Verdict.model_validate_json(verdict.read_bytes()) if verdict.is_file() else None,
    )


def _seeds(space: Workspace, placement: str, teacher: SoftLabels) -> list[dict[str, Predictions]]:
    """Predictions of every seed whose student and twin are both done."""
    from eval.predictions import load_predictions
    from foundation.data.store import read_manifest
    from transfer.distill import PREDICTIONS_FILE

    fingerprint = read_manifest(space.store).fingerprint
    found: list[dict[str, Predictions]] = []
    folder = space.work / "students" / placement
    for seed in sorted(int(path.name.removeprefix("seed-")) for path in folder.glob("seed-*")):
        files = {arm: space.student(placement, seed, arm) / PREDICTIONS_FILE for arm in ("student", "twin")}
        if all(file.is_file() for file in files.values()):
            both = {arm: load_predictions(file, data_fingerprint=fingerprint) for arm, file in files.items()}
            found.append(both | {"teacher": _teacher_predictions(both["student"], teacher)})
    if not found:
        remedy = f"Run `gemcut distill --placement {placement}` first."
        raise MismatchError(Problem(str(folder), "a student and its twin", "none", remedy))
    return found


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
