"""What a user's mistake looks like: one error, any number of problems, exit code 3.

The tree lives in the lowest package so that every other package can raise it.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class UserError(ValueError):
    """A mistake the user can mend: printed without a stack trace, exit code 3.

    Raised with every problem found, not only the first.
    """

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ProjectError(UserError):
    """The project file, or a `--set` on top of it, is malformed."""


class DataError(UserError):
    """The logs do not fit the project file."""


class MismatchError(UserError):
    """Two artifacts that must belong together do not: another store, teacher, schema or bundle."""


class BundleError(UserError):
    """A bundle is incomplete, damaged, from the future, or failed parity."""


class RequestError(UserError):
    """A request to the ranker is malformed."""
