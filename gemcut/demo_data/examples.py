"""Where the example projects are."""

from __future__ import annotations

from pathlib import Path

from serving.errors import Problem, UserError

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example_project(name: str) -> Path:
    """The project file of an example of this repository; its `data/` and `work/` lie beside it.

    Raises:
        UserError: gemcut runs without the repository, whose examples are no part of the installed package.
    """
    path = _EXAMPLES / name / "project.yaml"
    if not path.is_file():
        raise UserError(
            Problem(
                where=str(path),
                expected="the project file of an example",
                got="no such file",
                remedy="Run the demo in a clone of the repository, installed from there (`make setup`).",
            )
        )
    return path
