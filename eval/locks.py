"""One process at a time, by a lock that the system frees when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eval.artifacts import disk_errors
from serving.errors import Problem, UserError

POLL_S = 0.2


@contextmanager
def lock_held(path: Path, *, patience_s: float = 0.0) -> Iterator[bool]:
    """Whether this process alone holds a lock, for as long as the block lasts.

    Args:
        path: of an empty file that stands for what is locked; it and its folder are made, and stay.
        patience_s: seconds to wait for another process that holds it.

    Raises:
        UserError: the file can not be made there.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, lock_held(Path(folder, "lock")) as first:
        ...     with lock_held(Path(folder, "lock")) as second:
        ...         first, second
        (True, False)
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("w")
    until = time.monotonic() + patience_s
    with opened as file:
        while not (held := _take(file.fileno())) and time.monotonic() < until:
            time.sleep(POLL_S)
        yield held


@contextmanager
def only_one(path: Path, *, what: str, patience_s: float = 0.0) -> Iterator[None]:
    """Hold a lock within the block; `what` it is for is told to the user.

    Raises:
        UserError: another process holds it.
    """
    with lock_held(path, patience_s=patience_s) as held:
        if not held:
            remedy = "Wait for it, or stop it; then run the same command again."
            raise UserError(Problem(what, "one run at a time", "another one at work", remedy))
        yield


def _take(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody can be told to wait
        return True
    return True
