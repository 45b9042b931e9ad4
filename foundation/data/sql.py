"""DuckDB, kept within a memory limit, with its errors in our words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from serving.errors import DataError, Problem, UserError

if TYPE_CHECKING:
    import duckdb


def quote(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def connect(*, memory: str, threads: int, temporary: Path) -> duckdb.DuckDBPyConnection:
    """A connection that keeps to a memory limit and spills into `temporary`."""
    import duckdb

    try:
        return duckdb.connect(
            config={
                "memory_limit": memory,
                "threads": threads,
                "temp_directory": str(temporary),
                "preserve_insertion_order": True,
                "autoinstall_known_extensions": False,
                "TimeZone": "UTC",
                # Bounds of a parquet column leave NaN out, so "is NaN" and "above the largest" would be false.
                "disabled_optimizers": "statistics_propagation",
            }
        )
    except duckdb.Error as error:
        where = f"memory {memory!r}, threads {threads}"
        raise DataError(Problem(where, "a size such as 4GB", str(error), "Correct it.")) from error


_FULL = ("No space left", "File too large", "Disk quota exceeded", "max_temp_directory_size")


@contextmanager
def readable(files: Sequence[Path]) -> Iterator[None]:
    """Turn what DuckDB says of a damaged file, a full disk or too little memory into an error that names the files."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        raise
    except duckdb.Error as error:
        message = str(error).splitlines()[0]
        where = f"{files[0]}" if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
        if isinstance(error, duckdb.OutOfMemoryException) and "max_temp_directory_size" not in message:
            raise UserError(Problem(where, "enough memory", message, "Raise --memory, or lower --threads.")) from error
        if any(sign in str(error) for sign in _FULL):
            remedy = "Free disk space, then run the same command again: it goes on from here."
            raise UserError(Problem(where, "enough disk space", message, remedy)) from error
        damaged = next((str(file) for file in files if str(file) in str(error)), where)
        raise DataError(Problem(damaged, "readable parquet", message, "Write the file again.")) from error
