"""Checkpoints that a disk or a hand damaged: set aside and told, so that a run goes on from the one before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.markup import escape

from gemcut.console import Screen


def set_damaged_aside(folders: Iterable[Path], screen: Screen) -> None:
    """Look at the newest checkpoints of each folder; those that are not what was written are renamed, and named."""
    from foundation.training.checkpoint import list_checkpoints, set_aside_damaged

    for folder in folders:
        for error in set_aside_damaged(folder):
            for problem in error.problems:
                screen.say(f"[bold red]damaged checkpoint:[/bold red] {escape(str(problem))}")
            left = list_checkpoints(folder)
            going_on = f"goes on from {left[-1].name}" if left else "starts at the beginning, as there is no other"
            screen.say(f"It is kept as `damaged-…` in {escape(str(folder))}; training {going_on}.")
