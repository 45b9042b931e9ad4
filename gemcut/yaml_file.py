"""YAML as the project file uses it: plain data, no surprises, mistakes named with file, line and column.

Two departures from YAML 1.1: a key may stand only once in a mapping, and a plain word means what it looks like.
So `no`, `on`, `2017-11-01`, `1:30:00` and `007` are text, while `1e-3` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from serving.errors import Problem, ProjectError

_EXPONENT = r"[eE][-+]?[0-9]+"
_IMPLICIT = (  # type of a plain word, its pattern, its possible first letters
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        rf"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:{_EXPONENT})?|[0-9]+{_EXPONENT}|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", "<<", ["<"]),
)
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """The safe loader with fewer implicit types."""


class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes whatever either YAML or `_Loader` would not read back as text."""


def _set_implicit_types() -> None:
    _Loader.yaml_implicit_resolvers = {}
    for name, pattern, first in _IMPLICIT:
        whole = re.compile(rf"(?:{pattern})\Z")
        _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", whole, first)
        if name == "float":
            _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{name}", whole, first)


_set_implicit_types()


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping a YAML file holds.

    Raises:
        ProjectError: the file can not be read, is not YAML, or repeats a key.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        remedy = "Give the path of a project file, such as `project.yaml`."
        problem = Problem(str(path), "a readable file", error.strerror or "an error", remedy)
        raise ProjectError(problem) from None
    document = parse(content, where=str(path))
    if not isinstance(document, dict):
        got = "an empty file" if document is None else f"a {type(document).__name__}"
        raise ProjectError(Problem(str(path), "a mapping of sections", got, "Start from the example in the reference."))
    return document


def parse(content: bytes | str, where: str) -> Any:
    """The data a YAML text holds; see `read_mapping`."""
    try:
        loader = _Loader(content)
        node = loader.get_single_node()
        problems = [] if node is None else [*_repeated_keys(node, where, set())]
        if problems:
            raise ProjectError(problems)
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ProjectError(_syntax(where + _position(mark), error.problem or str(error))) from None
    except yaml.reader.ReaderError as error:
        raise ProjectError(_syntax(f"{where}: character {error.position}", str(error.reason))) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ProjectError):
            raise
        raise ProjectError(_syntax(where, str(error))) from None


def dump(content: dict[str, Any]) -> str:
    """YAML text that `parse` reads back to equal content."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _syntax(where: str, got: str) -> Problem:
    return Problem(
        where, "YAML", got, "Mend the file there; indentation counts, and text with `: ` or `#` needs quotes."
    )


def _position(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"


def _repeated_keys(node: yaml.Node, where: str, seen: set[int]) -> Iterator[Problem]:
    """A problem for each key that stands twice in one mapping, at any depth; `seen` stops at aliases."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _repeated_keys(child, where, seen)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, yaml.Mark] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if key.value in first:
                    got = f"`{key.value}` again, first on line {first[key.value].line + 1}"
                    position = where + _position(key.start_mark)
                    yield Problem(position, "each key once in a mapping", got, "Remove one of the two.")
                first.setdefault(key.value, key.start_mark)
            yield from _repeated_keys(value, where, seen)
