"""`gemcut distill`: students and their twins, in parallel local processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemcut.console import Screen
from gemcut.damaged import set_damaged_aside
from gemcut.fanout import Outcome, raise_failures, run_jobs
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace

if TYPE_CHECKING:
    from transfer.distill import StudentResult

DEFAULT_SEEDS = (0,)


def distill(
    loaded: LoadedProject,
    screen: Screen,
    *,
    placements: Sequence[str],
    seeds: Sequence[int] = DEFAULT_SEEDS,
    num_processes: int = 1,
) -> dict[str, Any]:
    """Train every placement's student and twin for every seed; finished ones are kept, failures told at the end."""
    from transfer.distill import ARMS, train_student

    space = Workspace(loaded)
    _check_inputs(space, placements)
    jobs = [
        (f"{placement} seed {seed} {arm}", space.student_job(placement, seed, arm))
        for placement in placements
        for seed in seeds
        for arm in ARMS
    ]
    outcomes: list[Outcome[StudentResult]] = []
    with space.training_alone(*placements), screen.progress("distill") as tell:
        set_damaged_aside([job.folder / "checkpoints" for _, job in jobs], screen)
        tell(0.0, f"{len(jobs)} jobs in {num_processes} processes")
        for outcome in run_jobs(train_student, jobs, num_processes=num_processes):
            outcomes.append(outcome)
            words = "failed" if outcome.result is None else f"label loss {outcome.result.label_loss:.4f}"
            tell(len(outcomes) / len(jobs), f"{len(outcomes)} of {len(jobs)}: {outcome.name}, {words}")
    raise_failures(outcomes)
    found = {outcome.name: outcome.result for outcome in outcomes if outcome.result is not None}
    results = {name: found[name] for name, _ in jobs}
    for name, result in results.items():
        screen.say(
            f"  {name:<40} {result.num_rows:>9,} rows  {result.seconds:6.1f} s  label loss {result.label_loss:.4f}"
            + (f"  soft labels on {result.soft_label_coverage:.1%}" if result.soft_label_coverage else "")
        )
    return {name: {"weights": result.weights_digest, "seconds": result.seconds} for name, result in results.items()}


def _check_inputs(space: Workspace, placements: Sequence[str]) -> None:
    """What every job needs of earlier steps, looked at once, so that one mistake is told once and at the start."""
    from foundation.data.store import Store
    from foundation.soft_labels import check_soft_labels

    project = space.loaded.project
    store = Store.open(space.store, project, verify=True)
    if any(project.placements[name].transfer.soft_labels is not None for name in placements):
        check_soft_labels(
            space.progressive_labels,
            data_fingerprint=store.fingerprint,
            schema_digest=project.schema_digest(),
            remedy="Run `gemcut train`.",
        )
