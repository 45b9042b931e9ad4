"""A comparison as cells: a table on the terminal, a table in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.compare import Figure, Slice

WIDEST = 200


def header(slices: Mapping[str, Slice]) -> list[str]:
    """Names of the columns."""
    first = next(iter(slices.values()))
    columns = ["objective", "rows of", "rows", "positives"]
    columns += [f"{metric} {name}" for metric in ("AUC", "NE", "cal.") for name in first.models]
    return columns + [f"{metric} lead on {name}" for metric in ("AUC", "NE") for name in first.leads]


def cells(objective: str, slices: Mapping[str, Slice]) -> list[list[str]]:
    """A line a slice."""
    lines: list[list[str]] = []
    for name, part in slices.items():
        line = [objective, name, f"{part.num_rows:,}", f"{part.num_positives:,}"]
        for metric, digits in (("auc", 4), ("ne", 4), ("calibration", 3)):
            line += [f"{figures[metric].mean:.{digits}f}" for figures in part.models.values()]
        for metric in ("auc", "ne"):
            line += [lead(figures[metric]) for figures in part.leads.values()]
        lines.append(line)
    return lines


def lead(figure: Figure) -> str:
    """A difference with its interval over users.

    Example:
        >>> lead(Figure(0.01234, 0.01, 0.015, 0.0))
        '+0.0123 [+0.0100, +0.0150]'
    """
    return f"{figure.mean:+.4f} [{figure.low:+.4f}, {figure.high:+.4f}]"


def show(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table for people, on standard error; as wide as it needs to be where no terminal limits it."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right")
    for line in lines:
        table.add_row(*line)
    Console(stderr=True, width=None if sys.stderr.isatty() else WIDEST).print(table)


def without(columns: Sequence[str], lines: Sequence[Sequence[str]], *, names: tuple[str, ...]) -> list[list[str]]:
    """Header and lines without the columns whose name begins so."""
    used = [place for place, column in enumerate(columns) if not column.startswith(names)]
    return [[line[place] for place in used] for line in (columns, *lines)]


def markdown(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same table as text."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(row)} |" for row in rows), "", ""])
