"""Pydantic's errors, said the way a user needs them: file, path, value, what is allowed, the nearest valid name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gemcut.fields import alternatives, child, choices, field_names, locate, models
from serving.errors import Problem, did_you_mean, listed, nearest, shortened
from serving.ids import IdSpace

_CHANGE = "Change the value."
_DURATION = "Write for example `7d`, `36h`, `90m`, `12:00:00` or `PT12H`; a bare number has no unit."
_REMEDIES = {
    "string_type": "Put the text in quotes.",
    "bool_type": "Write `true` or `false`.",
    "int_type": "Write a whole number, without quotes.",
    "float_type": "Write a number, without quotes.",
    "datetime_type": "Write for example `2017-11-01` or `2017-11-01T12:00:00Z`.",
    "time_delta_type": _DURATION,
    "time_delta_parsing": _DURATION,
    "tuple_type": "Write a list, in brackets: `[one, two]`.",
    "model_type": "Write its fields, or remove it if it may be left out.",
    "dict_type": "Write names, each with what it stands for.",
    "string_pattern_mismatch": "Names are at most 63 of a-z, 0-9 and _, and begin with a letter.",
}

_KINDS = {"tuple_type": "a list", "model_type": "a section", "dict_type": "a mapping of names"}

_STAND_INS: dict[Any, Any] = {
    float: 1.0,
    int: 1,
    str: "stand_in",
    datetime: "2020-01-01T00:00:00",
    timedelta: "P1D",
    IdSpace: {"buckets": 1},
}


def schema_problems(error: ValidationError, root: type[BaseModel], file: str, document: Any) -> list[Problem]:
    """One problem for each thing that pydantic found in the document, in the order of the models."""
    found: dict[tuple[str, str], Problem] = {}
    details = error.errors(include_url=False)
    for detail in details:
        if _lacks_faulty_entries(detail, details):
            continue
        problem = _problem(detail, root, file, document)
        earlier = found.get((problem.where, problem.got))
        if earlier:  # pydantic says one thing for each member of a union
            remedies = {earlier.remedy, problem.remedy} - {_CHANGE}
            remedy = remedies.pop() if len(remedies) == 1 else _CHANGE
            problem = replace(problem, expected=f"{earlier.expected} or {problem.expected}", remedy=remedy)
        found[problem.where, problem.got] = problem
    return list(found.values())


def _lacks_faulty_entries(detail: ErrorDetails, details: Sequence[ErrorDetails]) -> bool:
    """True if a list is too short for pydantic, which does not count the entries that it found faulty."""
    place = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and other["loc"][: len(place)] == place for other in details
    )


def repair(document: Any, error: ValidationError, root: type[BaseModel]) -> None:
    """Change the document in place so that checks across sections can run although it has faults.

    Misspelt keys take their nearest name, wrong values their default, or a stand-in where there is none.
    """
    details = error.errors(include_url=False)
    for detail in sorted(details, key=lambda detail: detail["type"] != "extra_forbidden"):
        path, kind = locate(root, detail["loc"])
        parent: Any = _at(document, path[:-1])
        if not path or type(parent) not in (dict, list):  # one repair can take away the place of the next
            continue
        section = locate(root, path[:-1])[1]
        last: Any = path[-1]
        if detail["type"] == "extra_forbidden":
            _rename(parent, str(last), names=field_names(section))
        elif detail["type"].startswith("union_tag") and isinstance(detail["input"], dict):
            _at(document, path)["kind"] = "number"  # which needs no table
        elif detail["type"] == "missing" and last in parent:  # renamed just now
            continue
        elif isinstance(parent, list) or _is_required(section, last):
            parent[last] = str(detail["input"]) if detail["type"] == "string_type" else _stand_in(kind)
        else:
            parent.pop(last, None)


def _at(document: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        if not isinstance(document, dict | list):
            return None
        document = document.get(key) if isinstance(document, dict) else document[int(key)]
    return document


def _rename(section: dict[str, Any], key: str, *, names: Sequence[str]) -> None:
    value, name = section.pop(key), nearest(key, names)
    if name:
        section.setdefault(name, value)


def _is_required(section: Any, key: str | int) -> bool:
    fields = [model.model_fields[str(key)] for model in models(section) if key in model.model_fields]
    return not fields or any(field.is_required() for field in fields)


def _stand_in(kind: Any) -> Any:
    known = [_STAND_INS[part] for part in alternatives(kind) if part in _STAND_INS]
    return known[0] if known else {}


def _problem(detail: ErrorDetails, root: type[BaseModel], file: str, document: Any) -> Problem:
    path, kind = locate(root, detail["loc"])
    where = f"{file}: {'.'.join(map(str, path))}"
    if detail["type"] == "extra_forbidden":
        return _unknown_key(where, str(path[-1]), names=field_names(_parent(root, detail)))
    if detail["type"] == "missing":
        return _missing(where, str(path[-1]), parent=_parent(root, detail))
    if detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
        return _kind(where, detail, kind)
    parsed = isinstance(detail["input"], timedelta)
    got = shortened(_at(document, path) if parsed else detail["input"])
    if (words := choices(kind)) and len(alternatives(kind)) == 1:
        return Problem(where, f"one of {listed(words)}", got, did_you_mean(str(detail["input"]), words, "Choose one."))
    if detail["type"] == "value_error":
        expected, _, said = str(detail.get("ctx", {}).get("error")).removeprefix("expected ").partition("; got ")
        return Problem(where, expected, said or got, _CHANGE)
    return Problem(where, _expected(detail), got, _REMEDIES.get(detail["type"], _CHANGE))


def _parent(root: type[BaseModel], detail: ErrorDetails) -> Any:
    return locate(root, detail["loc"][:-1])[1]


def _unknown_key(where: str, key: str, *, names: Sequence[str]) -> Problem:
    remedy = did_you_mean(key, names, "Remove it.")
    return Problem(where, f"one of {listed(names)}", f"unknown key `{key}`", remedy)


def _missing(where: str, key: str, *, parent: Any) -> Problem:
    field = next(model.model_fields[key] for model in models(parent) if key in model.model_fields)
    described = f" ({field.description.rstrip('.')})" if field.description else ""
    return Problem(where, f"a value{described}", "nothing", f"Add `{key}: ...`.")


def _kind(where: str, detail: ErrorDetails, union: Any) -> Problem:
    words = [word for model in models(union) for word in choices(child(model, "kind"))]
    got = detail["input"].get("kind") if isinstance(detail["input"], dict) else None
    if got is None:
        return Problem(f"{where}.kind", f"one of {listed(words)}", "nothing", f"Add `kind: {words[0]}`.")
    return Problem(f"{where}.kind", f"one of {listed(words)}", shortened(got), did_you_mean(str(got), words, "Choose."))


def _expected(detail: ErrorDetails) -> str:
    """What pydantic wanted, without its "Input should be"."""
    if detail["type"] in _KINDS:
        return _KINDS[detail["type"]]
    if detail["type"] == "too_short":
        return f"at least {detail.get('ctx', {}).get('min_length')} in it"
    message = detail["msg"]
    for prefix in ("Input should be ", "Input should have ", "Value error, "):
        message = message.removeprefix(prefix)
    return message[0].lower() + message[1:]
