"""`gemcut gate`: PASS, FAIL or INVALID against the placement's latency budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.artifacts import write_file
from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace

STYLES = {"PASS": "green", "FAIL": "red", "INVALID": "yellow"}


def gate(loaded: LoadedProject, screen: Screen, *, placements: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """Measure the current bundles, one after the other; `exit_code` is the worst verdict's."""
    from serving.gate.run import run_gate
    from transfer.export import REQUESTS_FILE, current_bundle

    space = Workspace(loaded)
    verdicts: dict[str, Any] = {}
    for placement in placements:
        bundles = space.bundles(placement)
        budget = loaded.project.placements[placement].budget
        with screen.progress(f"gate {placement}") as tell:
            tell(0.0, f"{budget.rate_per_s:g} requests/s for at least {budget.min_duration_s:g} s")
            verdict = run_gate(current_bundle(bundles), bundles / REQUESTS_FILE, budget, seed=seed)
        write_file(space.verdict(placement), verdict.model_dump_json(indent=2).encode())
        verdicts[placement] = verdict
        style, loop = STYLES[verdict.verdict], verdict.open_loop
        measured = (
            f"p50 {loop.p50_ms:.2f} ms, p99 {loop.p99_ms:.2f} ms, {loop.num_requests:,} requests"
            if loop
            else "nothing measured"
        )
        screen.say(f"[{style}]{verdict.verdict}[/{style}] {placement}: {measured}; limit {budget.limit_ms:g} ms")
        for reason in verdict.reasons:
            screen.say(f"  {reason}")
    exit_code = 1 if any(v.exit_code == 1 for v in verdicts.values()) else max(v.exit_code for v in verdicts.values())
    return {"exit_code": exit_code, "verdicts": {name: v.model_dump(mode="json") for name, v in verdicts.items()}}
