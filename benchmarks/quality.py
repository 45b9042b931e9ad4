"""The foundation model beside tuned trees and a DCNv2, on the same rows and columns of one project.

`python -m benchmarks.quality PROJECT --out DIR` runs all three, or goes on where it was, and compares them: still
learning after the cut (the trees can not), and frozen at the cut.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from benchmarks.command import ProjectArgument, SetOption, ThreadsOption, command_line, run
from benchmarks.compare import Slice, compare_models
from benchmarks.dcnv2 import LEARNING, RATES, Dcnv2Config, run_pass, tuned
from benchmarks.foundation import FROZEN, PROGRESSIVE, Wanted, score_foundation
from benchmarks.network import probabilities_of
from benchmarks.opened import Opened, kept, opened
from benchmarks.report import cells, header, markdown, show, without
from benchmarks.rows import predictions_from
from benchmarks.trees import TreeGrid, fit_trees
from eval.artifacts import write_file, write_json
from eval.intervals import Bootstrap
from eval.predictions import Predictions, save_predictions
from gemcut.console import Screen

Scored = dict[str, list[Predictions]]
"""By protocol, one table a seed."""


class Stage(StrEnum):
    """Models that are scored, one after the other."""

    trees = "trees"
    dcnv2 = "dcnv2"
    foundation = "foundation"


def digest_of(*content: Any) -> str:
    """sha256 of settings, by which a finished stage is recognised."""
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()


def score_trees(project: Opened, folder: Path, objectives: Sequence[str], grid: TreeGrid, screen: Screen) -> Scored:
    """Trees of each objective; they are frozen at the cut in either protocol."""
    schema, fingerprint = project.loaded.project, project.store.fingerprint
    tables: list[Predictions] = []
    for name in objectives:
        path = folder / f"{name}.parquet"
        digest = digest_of("trees", asdict(replace(grid, threads=0)), schema.schema_digest(), project.until_us, name)
        table = kept(path, digest, fingerprint)
        if table is None:
            fit = fit_trees(project.rows, name, until_us=project.until_us, grid=grid, tell=screen.say)
            table = predictions_from(project.rows, project.cut, {name: fit.probabilities}, model_digest=digest)
            chosen = {field: value for field, value in asdict(fit).items() if field != "probabilities"}
            write_json(folder / f"{name}.json", chosen)
            save_predictions(table, path)
        tables.append(table)
    merged = replace(
        tables[0],
        probabilities={name: table.probabilities[name] for name, table in zip(objectives, tables, strict=True)},
        labels={name: table.labels[name] for name, table in zip(objectives, tables, strict=True)},
    )
    return {FROZEN: [merged], PROGRESSIVE: [merged]}


def score_dcnv2(project: Opened, folder: Path, seeds: int, config: Dcnv2Config, screen: Screen) -> Scored:
    """A pass a seed, all at the rates that were best on the training period with the first."""
    schema, rows, fingerprint = project.loaded.project, project.rows, project.store.fingerprint
    scored: Scored = {FROZEN: [], PROGRESSIVE: []}
    best: Dcnv2Config | None = None
    for seed in range(seeds):
        settings = asdict(replace(config, threads=0, seed=seed))
        digest = digest_of("dcnv2", LEARNING, settings, RATES, schema.schema_digest(), project.until_us)
        paths = {protocol: folder / f"seed-{seed}" / f"{protocol}.parquet" for protocol in scored}
        found = {protocol: kept(path, digest, fingerprint) for protocol, path in paths.items()}
        tables = {protocol: table for protocol, table in found.items() if table is not None}
        if len(tables) < len(paths):
            best = best or tuned(rows, config, cut=project.cut, tell=screen.say)
            screen.say(f"dcnv2: seed {seed}, rates {best.dense_learning_rate:g} and {best.table_learning_rate:g}")
            done = run_pass(rows, replace(best, seed=seed), cut=project.cut)
            for protocol, logits in {FROZEN: done.frozen, PROGRESSIVE: done.progressive[project.cut :]}.items():
                chances = {name: probabilities_of(logits[:, k]) for k, name in enumerate(schema.objectives)}
                tables[protocol] = predictions_from(rows, project.cut, chances, model_digest=digest)
                save_predictions(tables[protocol], paths[protocol])
        for protocol, table in tables.items():
            scored[protocol].append(table)
    return scored


def score_seeds(project: Opened, folder: Path, seeds: int, screen: Screen) -> Scored:
    """The foundation model, a training a seed."""
    scored: Scored = {FROZEN: [], PROGRESSIVE: []}
    for seed in range(seeds):
        with screen.progress(f"foundation, seed {seed}") as tell:
            for protocol, table in score_foundation(project, Wanted(seed), folder / f"seed-{seed}", tell).items():
                scored[protocol].append(table)
    return scored


def results_of(
    models: dict[str, Scored], objectives: Sequence[str], bootstrap: Bootstrap
) -> dict[str, dict[str, dict[str, Slice]]]:
    """By protocol, objective and slice; without objectives whose label no test row knows."""
    results: dict[str, dict[str, dict[str, Slice]]] = {}
    for protocol in (PROGRESSIVE, FROZEN):
        tables = {model: scored[protocol] for model, scored in models.items()}
        compared = {name: compare_models(tables, name, bootstrap=bootstrap) for name in objectives}
        results[protocol] = {name: slices for name, slices in compared.items() if slices}
    return results


def write_results(folder: Path, results: dict[str, dict[str, dict[str, Slice]]]) -> dict[str, Any]:
    """`quality.json` and `quality.md` in a folder, AUC on the terminal; the content of the first."""
    text = "# Quality\n\nLeads are those of the first model, with 95 % intervals over users of the mean over seeds.\n\n"
    for protocol, objectives in results.items():
        columns = header(next(iter(objectives.values())))
        lines = [line for name, slices in objectives.items() for line in cells(name, slices)]
        shown, *short = without(columns, lines, names=("NE", "cal.", "positives"))
        show(protocol, shown, short)
        text += markdown(protocol, columns, lines)
    content = {
        protocol: {name: {where: asdict(part) for where, part in slices.items()} for name, slices in objectives.items()}
        for protocol, objectives in results.items()
    }
    write_file(folder / "quality.md", text.encode())
    write_json(folder / "quality.json", content)
    return content


app = command_line()


@app.command(help=__doc__)
def quality(
    project: ProjectArgument,
    *,
    out: Annotated[Path, typer.Option(help="Folder for predictions and results.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the two networks.")] = 3,
    stage: Annotated[list[Stage] | None, typer.Option(help="Only this; may be repeated. All, then compare.")] = None,
    objective: Annotated[list[str] | None, typer.Option(help="Only this; may be repeated.")] = None,
    overrides: SetOption = None,
    threads: ThreadsOption = 2,
) -> None:
    """See the module."""
    screen, opened_project = Screen(), opened(project, overrides or ())
    objectives = objective or list(opened_project.rows.schema.objectives)
    config = Dcnv2Config(
        threads=threads, batch_requests=opened_project.loaded.project.foundation.training.batch_requests
    )
    stages = {
        Stage.foundation: lambda: score_seeds(opened_project, out / "foundation", seeds, screen),
        Stage.trees: lambda: score_trees(opened_project, out / "trees", objectives, TreeGrid(threads=threads), screen),
        Stage.dcnv2: lambda: score_dcnv2(opened_project, out / "dcnv2", seeds, config, screen),
    }
    models = {name.value: score() for name, score in stages.items() if not stage or name in stage}
    if len(models) < len(stages):
        return
    results = results_of(models, objectives, Bootstrap())
    sys.stdout.write(orjson.dumps(write_results(out, results)).decode() + "\n")


if __name__ == "__main__":
    run(app)
