"""What a user's mistake looks like: one error, any number of problems, exit code 3.

The tree lives in the lowest package so that every other package can raise it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with what a user handed us.

    Attributes:
        where: file, and the field or column in it ("project.yaml: placements.home.surface").
        expected: what would have been right.
        got: what was there instead, with its value.
        remedy: what to do about it.
    """

    where: str
    expected: str
    got: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}; got {self.got}. {self.remedy}"


def shortened(value: object, limit: int = 60) -> str:
    """A value as a message shows it: its repr, cut in the middle.

    Example:
        >>> shortened("a" * 100, limit=16)
        "'aaaaa...aaaaaa'"
    """
    text = repr(value)
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]}...{text[-(limit - 3 - half) :]}"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that a misspelt word most likely meant, or None.

    Example:
        >>> nearest("widht", ["heads", "width"])
        'width'
    """
    close = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(word: str, names: Iterable[str], otherwise: str) -> str:
    """The remedy for a misspelt word: the nearest name, or else `otherwise`."""
    name = nearest(word, names)
    return f"Did you mean `{name}`?" if name else otherwise


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Names as a message shows them.

    Example:
        >>> listed(["b", "a", "c"], limit=2)
        '`a`, `b`, ... (3 in all)'
    """
    ordered = sorted(set(names))
    text = ", ".join(f"`{name}`" for name in ordered[:limit])
    return text if len(ordered) <= limit else f"{text}, ... ({len(ordered)} in all)"


class UserError(ValueError):
    """A mistake the user can mend: printed without a stack trace, exit code 3.

    Raised with every problem found, not only the first.
    """

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[UserError], tuple[tuple[Problem, ...]]]:
        """Travel between processes with the problems, not with their text."""
        return type(self), (self.problems,)


class ProjectError(UserError):
    """The project file, or a `--set` on top of it, is malformed."""


class DataError(UserError):
    """The logs do not fit the project file."""


class MismatchError(UserError):
    """Two artifacts that must belong together do not: another store, teacher, schema or bundle."""


class DamagedError(MismatchError):
    """An artifact is not what was written: files are missing, truncated, changed or new."""


class BundleError(UserError):
    """A bundle is incomplete, damaged, from the future, or failed parity."""


class RequestError(UserError):
    """A request to the ranker is malformed."""
