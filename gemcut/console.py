"""What a person sees: progress with an estimate, tables, problems; and one JSON document for machines with `--json`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from foundation.parallel.failures import PeerError, own_rank
from serving.errors import UserError

Tell = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Screen:
    """Standard error for people, standard output for the result. With `as_json` the last line of output is JSON."""

    as_json: bool = False
    people: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))

    @contextmanager
    def progress(self, title: str) -> Iterator[Tell]:
        """A bar that the yielded function moves: fraction in [0, 1] and a few words."""
        columns = (
            SpinnerColumn(),
            TextColumn(f"[bold]{title}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
        )
        with Progress(*columns, console=self.people, transient=True) as bar:
            task = bar.add_task(title, total=1.0, words="")
            yield lambda fraction, words: bar.update(task, completed=fraction, words=words)

    def say(self, text: str) -> None:
        """A line for people."""
        self.people.print(text, soft_wrap=True)

    def result(self, value: Any, *, following: str) -> None:
        """End a command: what to run next, with `--json` the result as the last line; of several ranks the first."""
        if own_rank() > 0:
            return
        self.people.print(f"[dim]next:[/dim] {escape(following)}", soft_wrap=True)
        if self.as_json:
            sys.stdout.write(
                orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode() + "\n"
            )

    def problems(self, error: UserError | PeerError) -> None:
        """Every problem of a user's mistake, or of a rank that had to give up, readable, without a stack trace."""
        number = len(error.problems)
        self.people.print(f"[bold red]{number} problem{'s' if number > 1 else ''}[/bold red]")
        for problem in error.problems:
            lines = (
                f"  [bold]{escape(problem.where)}[/bold]",
                f"    expected {escape(problem.expected)}",
                f"    got      {escape(problem.got)}",
                f"    [green]{escape(problem.remedy)}[/green]",
            )
            self.people.print(*lines, sep="\n", soft_wrap=True)
        if self.as_json:
            found = [
                {"where": p.where, "expected": p.expected, "got": p.got, "remedy": p.remedy} for p in error.problems
            ]
            sys.stdout.write(orjson.dumps({"problems": found}).decode() + "\n")
