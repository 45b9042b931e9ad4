"""`gemcut label`: the model as it was at the cut scores the rows that follow."""

from __future__ import annotations

from typing import Any

from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace


def label(loaded: LoadedProject, screen: Screen) -> dict[str, Any]:
    """Score the test period; the training period was scored progressively by `gemcut train`."""
    from transfer.label import LabelJob
    from transfer.label import label as label_rows

    space = Workspace(loaded)
    job = LabelJob(foundation=space.foundation_job(), target=space.test_labels, from_us=space.until_us)
    with screen.progress("label") as tell:
        num_rows = label_rows(job, progress=tell)
    screen.say(f"[green]soft labels[/green] {space.test_labels}: {num_rows:,} rows of the test period")
    return {"soft_labels": str(space.test_labels), "num_rows": num_rows}
