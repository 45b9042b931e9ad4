"""The project file: one YAML document, read into frozen models; each package owns its section's model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import Field, ValidationError

from eval.config import TrackingConfig
from foundation.config import FoundationConfig
from foundation.data.schema import Name, Schema, Section, Split
from gemcut import cross_checks as checks
from gemcut.overrides import apply_overrides
from gemcut.schema_problems import repair, schema_problems
from gemcut.yaml_file import dump, read_mapping
from serving.errors import Problem, ProjectError
from transfer.config import Placement

Part = TypeVar("Part", bound=Section)

_REPAIRS = 4  # a repair can uncover what pydantic did not look at before


class Project(Schema):
    """Everything a gemcut command needs to know; the whole project file.

    Paths are relative to the project file's folder.
    """

    name: Name = Field(description="Name of the project; also the MLflow experiment unless `tracking` says otherwise.")
    workdir: str = Field(default="work", min_length=1, description="Folder that everything is written under.")
    split: Split = Field(description="Training period and test period.")
    foundation: FoundationConfig = Field(default_factory=FoundationConfig, description="The one large model.")
    placements: dict[Name, Placement] = Field(min_length=1, description="One student each.")
    tracking: TrackingConfig = Field(default_factory=TrackingConfig, description="Where the evidence goes.")

    def resolved(self) -> dict[str, Any]:
        """The whole file with every default that counts, as plain data; loading it gives an equal project."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """`resolved()` as a project file."""
        return dump(self.resolved())

    def digest(self) -> str:
        """sha256 of the canonical JSON of `resolved()`, 64 hexadecimal digits."""
        return hashlib.sha256(orjson.dumps(self.resolved(), option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, slots=True)
class LoadedProject:
    """A project file that was read and found sound.

    Attributes:
        project: its content, `--set` applied.
        path: the file.
        root: its folder, absolute; relative paths in the file start here.
        digest: of the content, see `Project.digest`.
    """

    project: Project
    path: Path
    root: Path
    digest: str

    @property
    def workdir(self) -> Path:
        """Folder that everything is written under, absolute."""
        return self.root / self.project.workdir


def load_project(path: Path, overrides: Sequence[str] = ()) -> LoadedProject:
    """Read and check a project file.

    Args:
        path: the YAML file.
        overrides: `path.to.field=value` each, the value in YAML; applied in order.

    Raises:
        ProjectError: with every problem found, in the file and between its sections.
    """
    document = read_mapping(path)
    apply_overrides(document, overrides, Project)
    project = _validated(document, str(path))
    return LoadedProject(project=project, path=path, root=path.resolve().parent, digest=project.digest())


def cross_problems(project: Project) -> list[Problem]:
    """Everything that is wrong between the sections of a project."""
    model, placements = project.foundation.model, project.placements
    problems = (
        *checks.check_tables(project),
        *checks.check_feature_tables(project),
        *checks.check_feature_names(project),
        *checks.check_store_names(project),
        *checks.check_statistics(project),
        *checks.check_surfaces(project),
        *checks.check_conditions(project),
        *checks.check_weights(project),
        *checks.check_placements(project, placements),
        *checks.check_history(project, model, placements),
        *checks.check_recipe(model),
        *checks.check_placements_of_tables(project, project.foundation.parallel),
        *checks.check_heads(model),
        *checks.check_cls_tokens(model),
        *checks.check_split(project.split),
        *checks.check_finite(project.model_dump()),
    )
    return list(dict.fromkeys(problems))


def _validated(document: dict[str, Any], file: str) -> Project:
    """The project, or every problem: those of single fields, and those between sections as far as they can be told."""
    try:
        project: Project | None = _parsed(document, file)
        problems: list[Problem] = []
    except ValidationError as error:
        problems = schema_problems(error, Project, file, document)
        project = _repaired(document, file)
    faulty = tuple(problem.where for problem in problems)
    for problem in cross_problems(project) if project else ():
        where = f"{file}: {problem.where}"
        if not any(where == place or where.startswith(f"{place}.") for place in faulty):
            problems.append(replace(problem, where=where))
    if problems or project is None:
        raise ProjectError(problems)
    return project


def _parsed(document: dict[str, Any], file: str) -> Project:
    """The document as models. By way of JSON, since pydantic's strict JSON mode is the one that a file needs:

    text is no number and True is no 1, but a list is a tuple and text may be a time.
    """
    try:
        text = json.dumps(document, default=str)
    except ValueError:
        remedy = "Remove the alias (`*name`) that stands inside its own anchor (`&name`)."
        raise ProjectError(Problem(file, "plain data", "a value that contains itself", remedy)) from None
    return _capped_histories(Project.model_validate_json(text, strict=True))


def _capped_histories(project: Project) -> Project:
    """The project with lengths of histories that the file does not name at most that of the longest log."""
    limit = max(log.limit for log in project.data.events.values())
    model = _capped(project.foundation.model, "encoder_events", limit)
    placements = {
        name: place.model_copy(update={"student": _capped(place.student, "history", limit)})
        for name, place in project.placements.items()
    }
    foundation = project.foundation.model_copy(update={"model": model})
    return project.model_copy(update={"foundation": foundation, "placements": placements})


def _capped(section: Part, field: str, limit: int) -> Part:
    if field in section.model_fields_set or getattr(section, field) <= limit:
        return section
    capped = section.model_copy(update={field: limit})
    capped.model_fields_set.discard(field)  # the file does not name it still
    return capped


def _repaired(document: dict[str, Any], file: str) -> Project | None:
    """What the document would be without the faults of its fields; None if too little of it is left."""
    content = deepcopy(document)
    for _ in range(_REPAIRS):
        try:
            return _parsed(content, file)
        except ValidationError as error:
            repair(content, error, Project)
    return None
