"""`gemcut export`: a trained student becomes a bundle, if parity holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace


def export(loaded: LoadedProject, screen: Screen, *, placements: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """Export the students of one seed."""
    from serving.bundle import load_bundle
    from transfer.export import ExportJob
    from transfer.export import export as export_student

    space = Workspace(loaded)
    made: dict[str, Any] = {}
    with screen.progress("export") as tell:
        for done, placement in enumerate(placements):
            tell(done / len(placements), placement)
            job = ExportJob(
                student=space.student_job(placement, seed, "student"),
                project=loaded.project.name,
                project_digest=loaded.digest,
                target=space.bundles(placement),
            )
            folder = export_student(job)
            parity = load_bundle(folder).manifest.parity
            made[placement] = {"bundle": str(folder), "largest_error": parity.largest_error}
            size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
            error = max(parity.largest_error.values())
            screen.say(
                f"[green]bundle[/green] {folder} ({size:.1f} MB): parity on {parity.num_requests:,} requests, "
                f"largest error {error:.1e}, {sum(parity.order_flips.values())} order flips"
            )
    return made
