"""`gemcut train`: one pass of the foundation model over the training period; each row is scored before learned."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from typing import Any

from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.tracking import start_run
from gemcut.workspace import Workspace


def train(loaded: LoadedProject, screen: Screen, *, fresh: bool = False) -> dict[str, Any]:
    """Train, or go on from the newest checkpoint; `fresh` throws checkpoints away first.

    Under torchrun every rank calls this; the first one prints, tracks and writes shared files.
    """
    from foundation.efficiency.measures import pass_efficiency
    from foundation.training.foundation_model import train_foundation

    space = Workspace(loaded)
    is_first = os.environ.get("RANK", "0") == "0"
    if fresh and is_first:
        shutil.rmtree(space.foundation, ignore_errors=True)
    if not is_first:
        train_foundation(space.foundation_job())
        return {}
    with start_run(loaded, space.foundation, name="foundation") as tracker:
        tracker.log_params(_params(loaded))
        with screen.progress("train") as tell:
            report = train_foundation(space.foundation_job(), progress=tell)
        steps = report.stream.num_steps
        for objective, metrics in report.progressive.items():
            tracker.log_metrics(
                {
                    f"progressive/ne/{objective}": metrics.normalized_entropy,
                    f"progressive/auc/{objective}": metrics.auc,
                    f"progressive/calibration/{objective}": metrics.calibration,
                },
                step=steps,
            )
        efficiency = pass_efficiency(space.foundation_job(), report.stream)
        tracker.log_metrics(asdict(efficiency), step=steps)
        tracker.log_artifact(space.foundation / "report.json")
    _print(report.progressive, screen)
    screen.say(
        f"  {efficiency.rows_per_s:,.0f} rows/s, {efficiency.events_per_s:,.0f} events/s, "
        f"waited {efficiency.data_wait_ratio:.1%} of the time for data, E2E MFU {efficiency.e2e_mfu:.1%}"
    )
    return {
        "checkpoint": report.stream.checkpoint,
        "efficiency": asdict(efficiency),
        "progressive": {k: asdict(v) for k, v in report.progressive.items()},
    }


def _params(loaded: LoadedProject) -> dict[str, object]:
    config = loaded.project.foundation
    return {
        "project_digest": loaded.digest,
        **{f"model/{name}": value for name, value in config.model.model_dump().items()},
        **{f"training/{name}": value for name, value in config.training.model_dump().items()},
    }


def _print(progressive: dict[str, Any], screen: Screen) -> None:
    screen.say("[green]trained[/green]; each row was scored before it was learned from:")
    for objective, metrics in progressive.items():
        screen.say(
            f"  {objective:<14} rows {metrics.num_rows:>11,}  NE {metrics.normalized_entropy:.4f}  "
            f"AUC {metrics.auc:.4f}  calibration {metrics.calibration:.3f}"
        )
