"""`gemcut prepare`: the tables become the request store."""

from __future__ import annotations

from typing import Any

from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace


def prepare(loaded: LoadedProject, screen: Screen, *, memory: str = "4GB", threads: int = 2) -> dict[str, Any]:
    """Make the store, go on making it, or find that it is made."""
    from foundation.data.prepare import prepare as prepare_store

    target = Workspace(loaded).store
    with screen.progress("prepare") as tell:
        manifest = prepare_store(loaded.project, loaded.root, target, memory=memory, threads=threads, progress=tell)
    screen.say(
        f"[green]store[/green] {target}: {manifest.num_requests:,} requests, {manifest.num_rows:,} rows, "
        f"{sum(manifest.num_events.values()):,} events, {manifest.num_users:,} users, {manifest.num_items:,} items; "
        f"fingerprint {manifest.fingerprint[:12]}"
    )
    return {"store": str(target), "fingerprint": manifest.fingerprint, "num_rows": manifest.num_rows}
