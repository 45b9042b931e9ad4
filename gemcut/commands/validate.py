"""`gemcut validate`: the whole project file, then the data against it; every problem at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from gemcut.console import Screen
from gemcut.project import LoadedProject
from serving.errors import DataError

if TYPE_CHECKING:
    from foundation.data.summary import Summary


def validate(loaded: LoadedProject, screen: Screen, *, sample_rows: int | None = None) -> dict[str, Any]:
    """Check the data; the project file was checked when it was loaded.

    Raises:
        DataError: with every problem found.
    """
    from foundation.data.validate import validate_data

    with screen.progress("validate") as tell:
        tell(0.0, "reading the tables")
        validation = validate_data(loaded.project, loaded.root, loaded.project.split, sample_rows=sample_rows)
    if validation.problems:
        raise DataError(validation.problems)
    screen.say(f"[green]sound[/green]: {loaded.path}")
    if validation.summary is not None:
        _print(validation.summary, screen)
    hints = list(_hints(loaded, validation.summary if sample_rows is None else None))
    for hint in hints:
        screen.say(f"  [yellow]note[/yellow] {escape(hint)}")
    return {"sound": True, "summary": asdict(validation.summary) if validation.summary else None, "hints": hints}


def _hints(loaded: LoadedProject, summary: Summary | None) -> Iterator[str]:
    """What is allowed and hardly meant."""
    training, cpus = loaded.project.foundation.training, os.cpu_count() or 1
    if summary is not None and training.batch_requests >= summary.training_requests:
        yield (
            f"foundation.training.batch_requests is {training.batch_requests:,} and there are "
            f"{summary.training_requests:,} requests to train on: the one step scores every row before anything is "
            "learned. Lower it."
        )
    if training.threads > cpus:
        yield (
            f"foundation.training.threads is {training.threads:,} and this machine has {cpus:,} CPUs: more threads "
            "than CPUs only get in each other's way. Lower it."
        )


def _print(summary: Summary, screen: Screen) -> None:
    screen.say(
        f"  {summary.num_rows:,} rows of {summary.num_requests:,} requests ({summary.training_requests:,} to train on, "
        f"{summary.test_requests:,} to test), {summary.num_users:,} users, {summary.num_items:,} items, "
        f"{summary.first:%Y-%m-%d} to {summary.last:%Y-%m-%d}"
    )
    for log in summary.logs:
        screen.say(
            f"  log {log.name}: {log.num_events:,} events, {log.after_last_request:,} of them after the last request"
        )
    for head in summary.heads:
        screen.say(
            f"  {head.surface:<22} {head.objective:<14} {head.known:>11,} labels, {head.positives:>10,} positive, "
            f"{head.training_positives:>10,} of these to train on"
        )
