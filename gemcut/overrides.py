"""`--set path.to.field=value`: a change on top of the project file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from gemcut.fields import child, field_names
from gemcut.yaml_file import parse
from serving.errors import Problem, ProjectError, did_you_mean, listed


def apply_overrides(document: dict[str, Any], overrides: Sequence[str], root: type[BaseModel]) -> None:
    """Change the document in place: `a.b.0.c=VALUE`, the value written as YAML.

    Sections that the file leaves out are made on the way; entries of a mapping or list must be there already,
    except that the last key of a path may add an entry to a mapping.

    Raises:
        ProjectError: no `=`, a value that is not YAML, or a path that leads nowhere; all of them at once.
    """
    problems: list[Problem] = []
    for override in overrides:
        try:
            _apply(document, override, root)
        except ProjectError as error:
            problems.extend(error.problems)
    if problems:
        raise ProjectError(problems)


def _apply(document: dict[str, Any], override: str, root: type[BaseModel]) -> None:
    path, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals or not path:
        remedy = "Write for example `--set foundation.model.width=64`."
        raise ProjectError(Problem(where, "`path.to.field=value`", "no path and value", remedy))
    value = parse(text, where)
    here: Any = document
    kind: Any = root
    *parents, last = path.split(".")
    for step in parents:
        key = _key(here, kind, step, where=where, may_add=bool(field_names(kind)))
        kind = child(kind, key)
        if isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[key]
    here[_key(here, kind, last, where=where, may_add=True)] = value


def _key(here: Any, kind: Any, step: str, *, where: str, may_add: bool) -> str | int:
    """The step as a key of the document; `may_add` if the key need not be there yet."""
    if isinstance(here, list):
        if step.isdecimal() and int(step) < len(here):
            return int(step)
        raise ProjectError(Problem(where, _places(here), f"`{step}`", "Count from 0."))
    names = field_names(kind)
    if not isinstance(here, dict) or (not names and child(kind, step) is None):
        got = f"`{step}` under a value that has no parts"
        raise ProjectError(Problem(where, "a path of the project file", got, "Shorten the path."))
    known = names or tuple(here)
    if step in known or (may_add and not names):
        return step
    remedy = did_you_mean(step, known, "The project file reference lists every field.")
    raise ProjectError(Problem(where, f"one of {listed(known)}", f"unknown `{step}`", remedy))


def _places(here: list[Any]) -> str:
    return f"a place in the list, 0 to {len(here) - 1}" if here else "a place in the list, which is empty"
