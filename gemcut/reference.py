"""`python -m gemcut.reference` writes `docs/project-file.md` from the models; a test holds the page to them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen, MultipleOf
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from foundation.config import RECIPE_READS, RECIPE_SIZES, ModelConfig
from gemcut.fields import alternatives, choices, models
from gemcut.project import Project

PAGE = Path(__file__).parent.parent / "docs" / "project-file.md"

EXAMPLE = """\
name: shop

tables:                                   # embedding tables; features may share one
  user: {buckets: 100_000}
  item: {buckets: 50_000}
  store: {buckets: 1000}
  action: {type: string, values: [view, cart, purchase]}

data:
  impressions:
    files: logs/impressions/*.parquet
    context:
      - {kind: id, name: store}
    candidate:
      - {kind: number, name: price, rule: {transform: log1p}}
  events:
    behaviour:
      files: logs/events.parquet
      time: event_time
      unit: ms                            # event_time is an integer
      features:
        - {kind: id, name: action}

surfaces: [home, search]

objectives:
  click: {}
  purchase: {column: bought, delay: 7d, surfaces: [home]}

split: {test_from: 2024-03-01}

placements:
  home_page:
    surface: home
    objectives: [click, purchase]
    budget: {limit_ms: 10, rate_per_s: 100}
"""

_INTRO = """\
# The project file

One YAML file says what the logs mean, what is learned from them, and what may be shipped. This page is made from the
models that read the file (`python -m gemcut.reference`). Small and complete:

```yaml
{example}```

**Rules.** An unknown key, a wrong type or a broken reference is an error that names the place, the value, what is
allowed and the nearest valid name; all errors of a file are listed at once. A key may stand only once in a mapping.
Paths are relative to the file's folder. A time without a zone is UTC. A duration is `7d`, `36h`, `90m` or
`30s`; also `12:00:00` and `PT12H`. Unlike in YAML 1.1, `no` and `on` are text, and `1e-3` is a number.

**Change one value** without editing the file: `--set foundation.model.width=64`,
`--set data.impressions.context.0.column=store_id`. The value is YAML; places in a list count from 0.

**The file as it was understood**, with every default that counts written out, is `project.resolved.yaml` in the
folder of every tracked run and among its artifacts. Its digest (sha256) is a tag of the run and stands in every bundle.
"""

_PLAIN = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    datetime: "time",
    timedelta: "duration",
}
_LIMITS = ((Ge, "ge", "at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below"))


def page() -> str:
    """The reference as Markdown."""
    sections = list(_sections(Project, ""))
    return _INTRO.format(example=EXAMPLE) + "".join(_section(path, model) for path, model in sections)


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every model once, with the path of its first place, in the order of the file."""
    waiting = [(path, model)]
    seen: set[type[BaseModel]] = set()
    while waiting:
        path, model = waiting.pop(0)
        if model in seen:
            continue
        seen.add(model)
        yield path, model
        inner = [place for name, field in model.model_fields.items() for place in _inner(f"{path}.{name}", field)]
        waiting = [(place.removeprefix("."), kind) for place, kind in inner] + waiting


def _inner(path: str, field: FieldInfo) -> Iterator[tuple[str, type[BaseModel]]]:
    """The models under a field: its own, or those of the entries of its mapping or list."""
    for kind in alternatives(field.annotation):
        if get_origin(kind) is dict:
            yield from ((f"{path}.NAME", model) for model in models(get_args(kind)[1]))
        elif get_origin(kind) is tuple:
            yield from ((f"{path}.N", model) for model in models(get_args(kind)[0]))
        else:
            yield from ((path, model) for model in models(kind))


def _section(path: str, model: type[BaseModel]) -> str:
    kind = choices(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
    title = f"A feature of `kind: {kind[0]}`" if kind else f"`{path}`" if path else "The whole file"
    lines = [f"\n## {title}\n", inspect.cleandoc(model.__doc__ or ""), "", "| field | type | default | meaning |"]
    lines.append("|---|---|---|---|")
    for name, field in model.model_fields.items():
        default = _default(field) if name != "kind" else "required"
        lines.append(f"| `{name}` | {_type(field)} | {default} | {_meaning(field)} |")
    if model is ModelConfig:
        lines += ["", *_recipes()]
    return "\n".join(lines) + "\n"


def _recipes() -> Iterator[str]:
    """What each recipe sets, and what it reads."""
    yield "| recipe | sets, where the file does not | reads; the file sets no other |"
    yield "|---|---|---|"
    for recipe in choices(ModelConfig.model_fields["recipe"].annotation):
        sets = ", ".join(f"`{name}: {value}`" for name, value in RECIPE_SIZES[recipe].items()) or "–"
        reads = RECIPE_READS.get(recipe)
        fields = [name for name in ModelConfig.model_fields if reads and name in reads]
        yield f"| `{recipe}` | {sets} | {', '.join(f'`{name}`' for name in fields) or 'every field'} |"


def _type(field: FieldInfo) -> str:
    words = " or ".join(_name(kind) for kind in alternatives(field.annotation))
    limits = [
        f"{said} {_number(getattr(mark, name))}"
        for mark in field.metadata
        for kind, name, said in _LIMITS
        if isinstance(mark, kind)
    ]
    limits += [f"a multiple of {mark.multiple_of}" for mark in field.metadata if isinstance(mark, MultipleOf)]
    limits += [f"{mark.min_length} or more" for mark in field.metadata if isinstance(mark, MinLen)]
    return ", ".join([words, *limits])


def _name(kind: Any) -> str:
    if words := choices(kind):
        return " or ".join(f"`{word}`" for word in words)
    if get_origin(kind) is dict:
        return f"mapping of names to {_names(get_args(kind)[1])}"
    if get_origin(kind) is tuple:
        return f"list of {_names(get_args(kind)[0])}"
    return _PLAIN.get(kind, "section")


def _names(annotation: Any) -> str:
    kinds = dict.fromkeys(_name(kind) for kind in alternatives(annotation))
    return " or ".join(
        "features"
        if models(annotation) and len(models(annotation)) > 1
        else kind + "s" * (kind != "text" and "`" not in kind)
        for kind in kinds
    )


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "0" if value == timedelta(0) else str(value)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or isinstance(value, NoneType):
        return "–"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, timedelta):
        return "0" if not value else str(value)
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _meaning(field: FieldInfo) -> str:
    docs = [inspect.cleandoc(model.__doc__ or "").splitlines()[0] for model in models(field.annotation)]
    return (field.description or " ".join(docs)).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
