"""What makes two trainings days of one: all that shapes the model is the same, and lists of values grow at their end.

What was learned is compared in `foundation.data.past`; this is about the project file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

from foundation.data.schema import Schema
from serving.errors import MismatchError, Problem

Growth = dict[str, int]
"""How many values were added, by table; tables without new ones are not in it."""


class Vocabulary(BaseModel):
    """The listed values of a table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_values: int
    digest: str


class Lineage(BaseModel):
    """What a later day of the same training must find unchanged.

    Attributes:
        fixed: digest of each part of the project that shapes the model or says what data mean, by its path.
        vocabularies: of the tables with listed values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed: dict[str, str]
    vocabularies: dict[str, Vocabulary]


def lineage_of(schema: Schema, settings: Mapping[str, Any]) -> Lineage:
    """Of a project's data sections and of its other settings, by their path."""
    content = schema.model_dump(mode="json", include=set(Schema.model_fields))
    parts: dict[str, Any] = dict(settings) | {"surfaces": content["surfaces"]}
    vocabularies: dict[str, Vocabulary] = {}
    for name, table in content["tables"].items():
        if values := table.pop("values"):
            vocabularies[name] = Vocabulary(num_values=len(values), digest=_digest(values))
        parts[f"tables.{name}"] = table
    data = content["data"]
    ordered = {"data.events": data.pop("events"), **{name: content[name] for name in ("objectives", "statistics")}}
    for group, sections in ordered.items():
        parts[f"{group}, their order"] = list(sections)
        parts |= {f"{group}.{name}": _without_files(section) for name, section in sections.items()}
    parts |= {f"data.{name}": _without_files(section) for name, section in data.items()}
    return Lineage(fixed={path: _digest(part) for path, part in parts.items()}, vocabularies=vocabularies)


def growth_since(saved: Lineage, now: Lineage, schema: Schema, *, where: str) -> Growth:
    """How many values each table has more than it had.

    Args:
        saved: of the checkpoint.
        now: of `schema` and the settings that it would go on with.
        schema: the project's data sections.
        where: the checkpoint, for what is said.

    Raises:
        MismatchError: something else differs; every part that does is named.
    """
    paths = dict.fromkeys((*now.fixed, *saved.fixed))
    differing = [path for path in paths if saved.fixed.get(path) != now.fixed.get(path)]
    changed = _by_section(differing)
    growth: Growth = {}
    for name, before in saved.vocabularies.items():
        values = (schema.id_space(name).values if name in now.vocabularies else None) or ()
        if _digest(values[: before.num_values]) != before.digest:
            changed[f"tables.{name}.values"] = (
                f"a list that does not begin with the {before.num_values:,} values of then"
            )
        elif len(values) > before.num_values:
            growth[name] = len(values) - before.num_values
    expected = "what the checkpoint was made with; new are only values at a list's end, later days and a later end"
    remedy = "Restore what was changed, or start again with `gemcut train --fresh`."
    if changed:
        raise MismatchError([Problem(f"{where}: {path}", expected, got, remedy) for path, got in changed.items()])
    return growth


def _by_section(paths: Sequence[str]) -> dict[str, str]:
    """What to say of parts that differ, by where; several settings of one section together, as one brings others along.

    Example:
        >>> _by_section(["data.impressions", "foundation.model.sequence", "foundation.model.heads"])
        {'data.impressions': 'another one', 'foundation.model': 'other values of `sequence`, `heads`'}
    """
    of_sections: dict[str, list[str]] = {}
    for path in paths:
        section = path.rpartition(".")[0] if path.startswith("foundation.") else path
        of_sections.setdefault(section, []).append(path)
    said: dict[str, str] = {}
    for section, inside in of_sections.items():
        if len(inside) == 1:
            said[inside[0]] = "another one"
        else:
            names = [f"`{path.rpartition('.')[2]}`" for path in inside]
            said[section] = f"other values of {', '.join(names)}"
    return said


def _without_files(section: dict[str, Any] | None) -> dict[str, Any] | None:
    return section and {key: value for key, value in section.items() if key != "files"}


def _digest(content: Any) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
