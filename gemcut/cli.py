"""The command line: arguments of each command, and exit codes.

0; 1 (FAIL, or it broke); 2 (INVALID); 3 (a user's mistake); 75 (asked to leave by SIGTERM, all is saved); 130 (Ctrl-C).
"""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from foundation.parallel.failures import own_rank
from foundation.training.preemption import Preempted
from gemcut.console import Screen
from gemcut.failed import tell_failure
from gemcut.project import LoadedProject, load_project
from serving.errors import Problem, ProjectError

USAGE = 3
INTERRUPTED = 130
NAMES, VALUES = "a command and options that exist", "a valid option value or argument"
HELP = "`gemcut --help` lists the commands, `gemcut COMMAND --help` their options."


class Dataset(StrEnum):
    """Logs that the demo can make."""

    complete_journey = "complete_journey"
    synthetic = "synthetic"


class Gpu(StrEnum):
    """Machines that the cost model knows."""

    h100 = "h100"
    h200 = "h200"
    a100 = "a100"
    cpu = "cpu"


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"gemcut {metadata.version('gemcut')}\n")
        raise typer.Exit


app = typer.Typer(
    name="gemcut",
    help="Cuts small, fast value models out of one large ranking model, and proves that they meet their budgets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

bench_app = typer.Typer(no_args_is_help=True, help="Measure speed, beside what this machine can do at its best.")
app.add_typer(bench_app, name="bench")

ProjectOption = Annotated[Path, typer.Option("--project", "-p", help="The project file.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a field: path.to.field=value.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document as the last line of output.")]
PlacementOption = Annotated[list[str] | None, typer.Option("--placement", help="A placement; may be repeated.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every placement.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Which seed's student.")]

PROJECT = Path("project.yaml")


def main() -> None:
    """Run the command line; a user's mistake ends with its problems and exit code 3."""
    screen = Screen("--json" in sys.argv)
    try:
        code = app(standalone_mode=False)  # an int where a command asked for an exit code or for its help
    except typer.TyperException as error:
        if text := error.format_message():  # none where no command was named: then the help is on the screen
            expected = NAMES if text.startswith("No such") else VALUES
            tell_failure(ProjectError(Problem("command line", expected, text, HELP)), screen)
        sys.exit(USAGE)
    except Preempted as stop:
        if own_rank() == 0:
            screen.say(f"Stopped by SIGTERM: all that was learned is saved at step {stop.step:,}.")
            screen.say("[dim]next:[/dim] the same command, which goes on from there")
        sys.exit(stop.code)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except Exception as error:
        told = tell_failure(error, screen)
        if told is None:
            raise
        sys.exit(told)
    sys.exit(code)


@app.callback()
def _gemcut(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def validate(
    *,
    project: ProjectOption = PROJECT,
    overrides: SetOption = None,
    sample_rows: Annotated[int | None, typer.Option(min=1, help="Read only the first rows of each table.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the project file, then the data against it; list every problem."""
    from gemcut.commands.validate import validate as run

    loaded, screen = _begin(project, overrides, as_json)
    screen.result(
        run(loaded, screen, sample_rows=sample_rows), following=f"gemcut prepare {_again(project, overrides)}"
    )


@app.command()
def prepare(
    *,
    project: ProjectOption = PROJECT,
    overrides: SetOption = None,
    memory: Annotated[
        str, typer.Option(help="DuckDB's memory limit; beyond it sorts and joins spill to disk.")
    ] = "4GB",
    threads: Annotated[int, typer.Option(min=1, help="DuckDB's threads.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Turn the tables into the request store."""
    from gemcut.commands.prepare import prepare as run

    loaded, screen = _begin(project, overrides, as_json)
    screen.result(
        run(loaded, screen, memory=memory, threads=threads), following=f"gemcut train {_again(project, overrides)}"
    )


@app.command()
def train(
    *,
    project: ProjectOption = PROJECT,
    overrides: SetOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw checkpoints away and start again.")] = False,
    until: Annotated[
        str | None,
        typer.Option(
            help="Go on learning to this time, or to the `end` of the log; the default is `split.test_from`. "
            "A training that was begun to go further goes on to that."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train the foundation model in one pass, or go on from the newest checkpoint; write progressive soft labels."""
    from gemcut.commands.train import train as run

    loaded, screen = _begin(project, overrides, as_json)
    screen.result(run(loaded, screen, fresh=fresh, until=until), following=f"gemcut label {_again(project, overrides)}")


@app.command()
def label(*, project: ProjectOption = PROJECT, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Score the test period with the model as it was at the cut."""
    from gemcut.commands.label import label as run

    loaded, screen = _begin(project, overrides, as_json)
    screen.result(run(loaded, screen), following=f"gemcut distill --all {_again(project, overrides)}")


@app.command()
def distill(
    *,
    project: ProjectOption = PROJECT,
    placement: PlacementOption = None,
    every: AllOption = False,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")] = 1,
    processes: Annotated[int, typer.Option("--jobs", min=1, help="Local processes at once.")] = 1,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train students, and for each a twin without transfer on the same rows and seed."""
    from gemcut.commands.distill import distill as run

    loaded, screen = _begin(project, overrides, as_json)
    chosen = _placements(loaded, placement, every)
    made = run(loaded, screen, placements=chosen, seeds=range(seeds), num_processes=processes)
    screen.result(made, following=f"gemcut export {_flags(chosen, every)} {_again(project, overrides)}")


@app.command()
def export(
    *,
    project: ProjectOption = PROJECT,
    placement: PlacementOption = None,
    every: AllOption = False,
    seed: SeedOption = 0,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export trained students to bundles; a breach of parity publishes nothing."""
    from gemcut.commands.export import export as run

    loaded, screen = _begin(project, overrides, as_json)
    chosen = _placements(loaded, placement, every)
    screen.result(
        run(loaded, screen, placements=chosen, seed=seed),
        following=f"gemcut gate {_flags(chosen, every)} {_again(project, overrides)}",
    )


@app.command()
def gate(
    *,
    project: ProjectOption = PROJECT,
    placement: PlacementOption = None,
    every: AllOption = False,
    seed: Annotated[int, typer.Option("--load-seed", min=0, help="Of arrivals and of the draw of requests.")] = 0,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge the bundles' latency: exit code 0 PASS, 1 FAIL, 2 INVALID (not measured well enough to say)."""
    from gemcut.commands.gate import gate as run

    loaded, screen = _begin(project, overrides, as_json)
    chosen = _placements(loaded, placement, every)
    judged = run(loaded, screen, placements=chosen, seed=seed)
    screen.result(judged["verdicts"], following=f"gemcut evaluate {_flags(chosen, every)} {_again(project, overrides)}")
    raise typer.Exit(judged["exit_code"])


@bench_app.command("foundation")
def bench_foundation(
    *,
    project: ProjectOption = PROJECT,
    batches: Annotated[int, typer.Option(min=1, help="Batches of the training period that a step is timed on.")] = 4,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each comparison.")] = 7,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Try torch.compile too.")] = True,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Floors of this machine, then how fast the foundation model learns on it; needs the store only."""
    from gemcut.commands.bench import bench_foundation as run

    loaded, screen = _begin(project, overrides, as_json)
    found = run(loaded, screen, batches=batches, rounds=rounds, compiled=compiled)
    screen.result(found, following=f"gemcut train {_again(project, overrides)}")


@app.command()
def plan(
    *,
    project: ProjectOption = PROJECT,
    gpus: Annotated[int, typer.Option(min=1, max=2**17, help="GPUs, all together.")] = 8,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of a node.")] = 8,
    hardware: Annotated[Gpu, typer.Option(help="Kind of GPU; `cpu` is one process on one core.")] = Gpu.h100,
    batch_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests a step over all GPUs; the project's `batch_requests` for each if absent."),
    ] = None,
    assumed: Annotated[
        list[str] | None,
        typer.Option("--assume", help="Change what is assumed: mfu=0.3, overlap=0.8, restart_h=0.1, ..."),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict memory, traffic, speed and failures on a cluster, by size of the sharding group; needs the store only."""
    from gemcut.commands.plan import plan as run

    loaded, screen = _begin(project, overrides, as_json)
    found = run(
        loaded,
        screen,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        hardware=hardware.value,
        batch_requests=batch_requests,
        assumed=assumed or (),
    )
    screen.result(found, following=_after_plan(found, _again(project, overrides)))


@app.command()
def evaluate(
    *,
    project: ProjectOption = PROJECT,
    placement: PlacementOption = None,
    every: AllOption = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """NE, AUC, gAUC and calibration on the test period: student beside twin beside teacher."""
    from gemcut.commands.evaluate import evaluate as run

    loaded, screen = _begin(project, overrides, as_json)
    chosen = _placements(loaded, placement, every)
    screen.result(run(loaded, screen, placements=chosen), following=_open_tracking(loaded))


@app.command()
def sync(*, project: ProjectOption = PROJECT, overrides: SetOption = None, as_json: JsonOption = False) -> None:
    """Deliver to MLflow what tracking kept while the server did not answer."""
    from gemcut.commands.sync import sync as run

    loaded, screen = _begin(project, overrides, as_json)
    screen.result(run(loaded, screen), following=_open_tracking(loaded))


@app.command()
def demo(
    *,
    data: Annotated[Dataset, typer.Option(help="complete_journey: real logs. synthetic: no network, no extra.")] = (
        Dataset.complete_journey
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of students and twins.")] = 3,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw an earlier demo's results away and start again.")
    ] = False,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """The whole path, once: make the logs, validate, prepare, train, label, distill, export, gate, evaluate."""
    from gemcut.commands.demo import demo as run

    screen = Screen(as_json)
    loaded, result = run(screen, data=data.value, seeds=seeds, fresh=fresh, overrides=overrides or ())
    screen.result(result, following=_open_tracking(loaded))


def _begin(project: Path, overrides: list[str] | None, as_json: bool) -> tuple[LoadedProject, Screen]:
    return load_project(project, overrides or ()), Screen(as_json)


def _placements(loaded: LoadedProject, chosen: list[str] | None, every: bool) -> list[str]:
    known = list(loaded.project.placements)
    if every == bool(chosen):
        got = "both" if every else "neither"
        raise ProjectError(
            Problem("command line", "either --placement NAME or --all", got, f"Placements: {', '.join(known)}.")
        )
    unknown = [name for name in chosen or () if name not in known]
    if unknown:
        where = f"{loaded.path}: placements"
        raise ProjectError(
            [Problem(where, f"one of {', '.join(known)}", name, "Correct --placement.") for name in unknown]
        )
    return known if every else list(dict.fromkeys(chosen or ()))


def _flags(chosen: list[str], every: bool) -> str:
    return "--all" if every else " ".join(f"--placement {name}" for name in chosen)


def _again(project: Path, overrides: list[str] | None) -> str:
    """The arguments that name the same project once more."""
    return shlex.join(["-p", str(project), *(part for value in overrides or () for part in ("--set", value))])


def _after_plan(found: dict[str, Any], again: str) -> str:
    """The launch of what was planned, or the plan of a cluster on which it would fit."""
    cluster, enough = found["cluster"], found["gpus_that_fit"]
    nodes, local = cluster["num_nodes"], min(cluster["gpus"], cluster["gpus_per_node"])
    if found["best"] is None:
        return f"gemcut plan --gpus {enough or cluster['gpus']} --gpus-per-node {cluster['gpus_per_node']} {again}"
    batch = f"--set foundation.training.batch_requests={found['workload']['requests_per_step']}"
    return f"torchrun --nnodes {nodes} --nproc-per-node {local} -m gemcut train {again} {batch}"


def _open_tracking(loaded: LoadedProject) -> str:
    from gemcut.tracking import uri_of

    return f"mlflow ui --backend-store-uri {uri_of(loaded)}"
