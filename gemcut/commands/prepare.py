"""`gemcut prepare`: the tables become the request store."""

from __future__ import annotations

from typing import Any

from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace
from serving.errors import DataError


def prepare(loaded: LoadedProject, screen: Screen, *, memory: str = "4GB", threads: int = 2) -> dict[str, Any]:
    """Make the store, go on making it, or find that it is made; logs that `validate` would refuse make none.

    Raises:
        DataError: with every problem of the logs.
    """
    from foundation.data.prepare import ALREADY
    from foundation.data.prepare import prepare as prepare_store
    from foundation.data.validate import validate_data

    with screen.progress("validate") as tell:
        tell(0.0, "reading the tables")
        problems = validate_data(loaded.project, loaded.root, loaded.project.split).problems
    if problems:
        raise DataError(problems)
    target = Workspace(loaded).store
    told: list[str] = []
    with screen.progress("prepare") as tell:

        def listen(fraction: float, words: str) -> None:
            told.append(words)
            tell(fraction, words)

        manifest = prepare_store(loaded.project, loaded.root, target, memory=memory, threads=threads, progress=listen)
    screen.say(
        f"[green]store[/green] {target}: {manifest.num_requests:,} requests, {manifest.num_rows:,} rows, "
        f"{sum(manifest.num_events.values()):,} events, {manifest.num_users:,} users, {manifest.num_items:,} items; "
        f"fingerprint {manifest.fingerprint[:12]}" + (f"; {ALREADY}" if told[-1] == ALREADY else "")
    )
    return {"store": str(target), "fingerprint": manifest.fingerprint, "num_rows": manifest.num_rows}
