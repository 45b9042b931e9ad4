"""Which names a project file may use where: a walk over the types of the pydantic models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_KEY = "[key]"  # how pydantic marks that a mapping's key is wrong, not its value


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types that a value may have, without None and without metadata.

    Example:
        >>> alternatives(Annotated[int | str, "why"] | None)
        (<class 'int'>, <class 'str'>)
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in alternatives(part))
    return () if annotation is type(None) else (annotation,)


def models(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models among a value's types."""
    return tuple(kind for kind in alternatives(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel))


def field_names(annotation: Any) -> tuple[str, ...]:
    """Keys that a section may have; () where the value is no section."""
    return tuple(dict.fromkeys(name for model in models(annotation) for name in model.model_fields))


def choices(annotation: Any) -> tuple[str, ...]:
    """The words a value may be, where it is one of a few."""
    kinds = [kind for kind in alternatives(annotation) if get_origin(kind) is Literal]
    return tuple(str(word) for kind in kinds for word in get_args(kind))


def child(annotation: Any, key: str | int) -> Any | None:
    """Type of what stands under a key: a field's name, a mapping's key, a place in a list. None if there is no such."""
    for kind in alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and key in kind.model_fields:
            return kind.model_fields[str(key)].annotation
        if get_origin(kind) is dict:
            return get_args(kind)[1]
        if get_origin(kind) is tuple and isinstance(key, int):
            return get_args(kind)[0]
    return None


def locate(root: type[BaseModel], location: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """Path in the file, and the type expected there, of a place as pydantic gives it.

    Pydantic's places hold more than keys: which model of a union was tried, and a mark on wrong keys.

    Returns:
        The keys, and the type under the last of them: None if the models know no such key.
    """
    path: list[str | int] = []
    kind: Any = root
    for step in location:
        tried = _tried(kind, step)
        if tried is not None:
            kind = tried
        elif step != _KEY and not _is_type_name(kind, step):
            path.append(step)
            kind = child(kind, step)
    return path, kind


def _tried(annotation: Any, tag: str | int) -> type[BaseModel] | None:
    """The model of a union that has this tag in its `kind`."""
    tagged = [model for model in models(annotation) if "kind" in model.model_fields]
    return next((model for model in tagged if tag in choices(model.model_fields["kind"].annotation)), None)


def _is_type_name(annotation: Any, step: str | int) -> bool:
    """True for the "int" in `(…, "values", 0, "int")`: the member of a union of plain types that was tried."""
    plain = [kind.__name__ for kind in alternatives(annotation) if kind in (int, str, float, bool, timedelta)]
    said = ("literal[",) * bool(choices(annotation)) + ("function-before[",) * (timedelta in alternatives(annotation))
    return str(step).removeprefix("constrained-") in plain or str(step).startswith(said)
