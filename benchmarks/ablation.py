"""What each part of the foundation model brings: variants of a project, each trained and scored row by row.

`python -m benchmarks.ablation PROJECT --out DIR --objective purchase` runs those of `variants.yaml`, or goes on where
it was, and compares each with the first. The scores are progressive: no row was learned from before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from pydantic import Field, TypeAdapter, ValidationError

from benchmarks.command import ProjectArgument, SetOption, command_line, run
from benchmarks.compare import ALL, Figure, Slice, compare_models
from benchmarks.foundation import PROGRESSIVE, Wanted, score_foundation
from benchmarks.opened import Opened, opened
from benchmarks.report import lead, markdown, show
from eval.artifacts import write_file, write_json
from eval.intervals import Bootstrap
from eval.predictions import Predictions
from foundation.data.schema import Section
from gemcut.console import Screen
from gemcut.project import load_project
from gemcut.yaml_file import read_mapping
from serving.errors import Problem, ProjectError

VARIANTS = Path(__file__).with_name("variants.yaml")
COLUMNS = ("variant", "rows of", "rows", "AUC", "NE", "AUC lead on it", "NE lead on it", "seed error of the AUC lead")


class Variant(Section):
    """One way to train."""

    set: tuple[str, ...] = Field(default=(), description="Overrides of the project file: path.to.field=value.")
    only_objective: bool = Field(default=False, description="The other objectives weigh nothing.")
    only_surface: bool = Field(default=False, description="Learn from one surface, and be compared on it alone.")

    def overrides(self, objectives: Sequence[str], judged: str) -> list[str]:
        """All of them, for a project of these objectives."""
        others = [f"objectives.{name}.weight=0" for name in objectives if self.only_objective and name != judged]
        return [*self.set, *others]


def read_variants(path: Path) -> dict[str, Variant]:
    """Variants by name, the one that the others are compared with first.

    Raises:
        ProjectError: the file is none of variants.
    """
    content = read_mapping(path)
    try:
        return TypeAdapter(dict[str, Variant]).validate_json(orjson.dumps(content))
    except ValidationError as error:
        remedy = "Each variant is a mapping of `set`, `only_objective` and `only_surface`."
        problems = [
            Problem(f"{path}: {'.'.join(map(str, fault['loc']))}", "a variant", fault["msg"], remedy)
            for fault in error.errors()
        ]
        raise ProjectError(problems) from None


def score_variant(
    project: Opened, folder: Path, seeds: int, surface: str | None, screen: Screen, *, name: str
) -> list[Predictions]:
    """Progressive predictions of the test rows, a training a seed."""
    tables: list[Predictions] = []
    for seed in range(seeds):
        wanted = Wanted(seed, frozen=False, surfaces=None if surface is None else (surface,))
        with screen.progress(f"{name}, seed {seed}") as tell:
            table = score_foundation(project, wanted, folder / f"seed-{seed}", tell)[PROGRESSIVE]
        tables.append(table if surface is None else table.on_surface(surface))
    return tables


def compare_variants(tables: dict[str, list[Predictions]], objective: str, bootstrap: Bootstrap) -> dict[str, Slice]:
    """The first variant beside each of the others, on the rows that the other was trained for."""
    (full_name, full), *others = tables.items()
    compared: dict[str, Slice] = {}
    for name, seeds in others:
        surfaces = sorted(set(seeds[0].surface.tolist()))
        whole = len(surfaces) == len(set(full[0].surface.tolist()))
        beside = full if whole else [table.on_surface(table.surfaces[surfaces[0]]) for table in full]
        compared[name] = compare_models({full_name: beside, name: seeds}, objective, bootstrap=bootstrap)[ALL]
    return compared


def lines_of(compared: dict[str, Slice], surfaces: dict[str, str]) -> list[list[str]]:
    """A line a variant: its figures, and by how much the first leads it."""

    def line(name: str, part: Slice) -> list[str]:
        auc, ne = part.leads[name]["auc"], part.leads[name]["ne"]
        own = part.models[name]
        where = [name, surfaces.get(name, ALL), f"{part.num_rows:,}"]
        return [*where, _figure(own["auc"]), _figure(own["ne"]), lead(auc), lead(ne), f"{auc.seed_error:.4f}"]

    return [line(name, part) for name, part in compared.items()]


def _figure(figure: Figure) -> str:
    return f"{figure.mean:.4f}"


app = command_line()


@app.command(help=__doc__)
def ablation(
    project: ProjectArgument,
    *,
    out: Annotated[Path, typer.Option(help="Folder for predictions and results.")],
    objective: Annotated[str, typer.Option(help="The one that is judged.")],
    surface: Annotated[str | None, typer.Option(help="Of `only_surface`; the project's first if absent.")] = None,
    variants: Annotated[Path, typer.Option(help="A file of variants.")] = VARIANTS,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each.")] = 2,
    until: Annotated[str, typer.Option(help="Rows before this time only; `end` for all.")] = "end",
    overrides: SetOption = None,
) -> None:
    """See the module."""
    screen, known = Screen(), read_variants(variants)
    objectives = list(load_project(project, overrides or ()).project.objectives)
    settings = {name: [*(overrides or ()), *one.overrides(objectives, objective)] for name, one in known.items()}
    for sets in settings.values():  # all of them, before the first is trained
        load_project(project, sets)
    tables: dict[str, list[Predictions]] = {}
    surfaces: dict[str, str] = {}
    for name, variant in known.items():
        changed = opened(project, settings[name], until=until)
        where = (surface or changed.loaded.project.surfaces[0]) if variant.only_surface else None
        tables[name] = score_variant(changed, out / name, seeds, where, screen, name=name)
        surfaces |= {} if where is None else {name: where}
    compared = compare_variants(tables, objective, Bootstrap())
    lines, title = lines_of(compared, surfaces), f"{objective}: {next(iter(known))} beside its variants"
    show(title, COLUMNS, lines)
    content = {name: asdict(part) for name, part in compared.items()}
    write_file(out / "ablation.md", markdown(title, COLUMNS, lines).encode())
    write_json(out / "ablation.json", content)
    sys.stdout.write(orjson.dumps(content).decode() + "\n")


if __name__ == "__main__":
    run(app)
