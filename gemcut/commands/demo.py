"""`gemcut demo`: the whole path on an example's logs, by the same commands that a project of one's own uses."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

from gemcut.commands.distill import distill
from gemcut.commands.evaluate import evaluate
from gemcut.commands.export import export
from gemcut.commands.gate import gate
from gemcut.commands.label import label
from gemcut.commands.prepare import prepare
from gemcut.commands.train import train
from gemcut.commands.validate import validate
from gemcut.console import Screen
from gemcut.demo_data.examples import example_project
from gemcut.project import LoadedProject, load_project
from gemcut.tracking import uri_of

PROCESSES = 2


def demo(
    screen: Screen, *, data: str, seeds: int, fresh: bool, overrides: Sequence[str]
) -> tuple[LoadedProject, dict[str, Any]]:
    """Make the logs if they are not there, then run every step; an interrupted demo goes on where it was."""
    path = example_project(data)
    loaded = load_project(path, overrides)
    if fresh:
        shutil.rmtree(loaded.workdir, ignore_errors=True)
    placements = list(loaded.project.placements)
    seconds: dict[str, float] = {}

    def timed(name: str, step: Callable[[], Any]) -> Any:
        screen.say(f"\n[bold]{name}[/bold]")
        started = time.perf_counter()
        result = step()
        seconds[name] = time.perf_counter() - started
        return result

    timed("data", lambda: _make_data(loaded, screen, data))
    timed("validate", lambda: validate(loaded, screen))
    timed("prepare", lambda: prepare(loaded, screen))
    timed("train", lambda: train(loaded, screen, started_s=time.time()))
    timed("label", lambda: label(loaded, screen))
    timed(
        "distill", lambda: distill(loaded, screen, placements=placements, seeds=range(seeds), num_processes=PROCESSES)
    )
    timed("export", lambda: export(loaded, screen, placements=placements))
    judged = timed("gate", lambda: gate(loaded, screen, placements=placements))
    result = timed("evaluate", lambda: evaluate(loaded, screen, placements=placements))
    screen.say("\nseconds: " + ", ".join(f"{name} {spent:.0f}" for name, spent in seconds.items()))
    screen.say(f"project file: {path}\nMLflow: {uri_of(loaded)}")
    return loaded, result | {"verdicts": judged["verdicts"], "seconds": seconds}


def _make_data(loaded: LoadedProject, screen: Screen, data: str) -> None:
    from gemcut.demo_data import complete_journey, synthetic

    target = loaded.root / "data"
    if (target / "impressions.parquet").is_file():
        screen.say(f"logs are in {target}")
        return
    with screen.progress("data") as tell:
        tell(0.0, "making the logs")
        if data == "synthetic":
            synthetic.make_data(target, lambda words: tell(0.0, words))
        else:
            complete_journey.make_data(target, lambda words: tell(0.0, words))
    screen.say(f"[green]logs[/green] {target}")
