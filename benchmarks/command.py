"""What the command lines of all benchmarks share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gemcut.console import Screen
from serving.errors import UserError

ProjectArgument = Annotated[Path, typer.Argument(help="The project file; `gemcut prepare` has made its store.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a field: path.to.field=value.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Of the baselines.")]


def command_line() -> typer.Typer:
    """A command line of one command."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def run(app: typer.Typer) -> None:
    """Run the command; a user's mistake ends with its problems and exit code 3."""
    try:
        app()
    except UserError as error:
        Screen().problems(error)
        sys.exit(3)
