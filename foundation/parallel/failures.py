"""The first failure among the ranks: the rank that failed tells all of it, the others point to it, torchrun is told.

Ranks tell one another in the store where they met, which under torchrun outlives each of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from textwrap import shorten
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Self

import orjson

from foundation.goodput.journal import process_started_s
from serving.errors import Problem, UserError

if TYPE_CHECKING:
    from torch.distributed import Store

CONNECT = timedelta(seconds=5)
FAILED, USER_ERROR = 1, 3
FAILURE_KEY = "failure"
FOLLOW_LETTERS = 300
OURS = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a rank.

    Attributes:
        text: for people.
        exit_code: of the process, and of those that follow it.
        time_s: seconds since 1970 UTC.
    """

    rank: int
    text: str
    exit_code: int
    time_s: float

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """This rank's, now."""
        if isinstance(error, UserError):
            return cls(own_rank(), str(error), USER_ERROR, time.time())
        if isinstance(error, PeerError):
            return cls(own_rank(), error.problems[0].got, FAILED, time.time())
        line = line_of_error(error)
        text = f"{type(error).__name__}: {error}" + (f", at {line}" if line else "")
        return cls(own_rank(), text, FAILED, time.time())

    @property
    def is_own(self) -> bool:
        """Whether it is this rank's."""
        return self.rank == own_rank()


class PeerError(RuntimeError):
    """This rank can not go on without another one, which did not fail by itself.

    Attributes:
        problems: one, as a user's mistake has; this is none.
    """

    def __init__(self, problem: Problem) -> None:
        self.problems = (problem,)
        super().__init__(str(problem))


class FollowError(RuntimeError):
    """This rank ends because another one has failed, which tells why."""

    def __init__(self, first: Failure) -> None:
        self.first = first
        words = shorten(first.text, FOLLOW_LETTERS, placeholder=" ...")
        super().__init__(f"rank {own_rank()} ends, since rank {first.rank} failed first: {words}")


def own_rank() -> int:
    """This process's, as its launcher says; 0 if it was not launched as one of several."""
    return int(os.environ.get("RANK", "0"))


def num_ranks() -> int:
    """How many processes were launched together; 1 if this one was not."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def attempt() -> str:
    """Which start of all ranks this is, as far as they all know: on several nodes each torchrun counts for itself."""
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"


def open_board() -> Store:
    """The store where the ranks met, on a connection of its own, in the part of this attempt.

    Raises:
        RuntimeError: nobody answers: the launcher, or whoever has the store, is gone.
    """
    from torch.distributed import FileStore, PrefixStore, TCPStore

    file = os.environ.get("GEMCUT_MEETING_FILE")
    if file:
        store: Store = FileStore(file, -1)
    else:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=CONNECT, wait_for_workers=False)
    return PrefixStore(f"gemcut/{attempt()}", store)


def first_failure(own: Failure) -> Failure:
    """Tell the other ranks that this one has failed → the failure that was told first, this one or another rank's."""
    if num_ranks() == 1:
        return own
    try:
        board, content = open_board(), orjson.dumps(asdict(own)).decode()
        found = board.compare_set(FAILURE_KEY, "", content)
        first = Failure(**orjson.loads(found))
        if first.time_s < process_started_s():  # of processes before these, which torchrun has replaced
            first = Failure(**orjson.loads(board.compare_set(FAILURE_KEY, found.decode(), content)))
    except RuntimeError:  # no store, nobody to tell
        return own
    return first


def read_failure() -> Failure | None:
    """The failure that was told first; None if none was."""
    try:
        board = open_board()
        told = Failure(**orjson.loads(board.get(FAILURE_KEY))) if board.check([FAILURE_KEY]) else None
    except RuntimeError:
        return None
    return told if told is not None and told.time_s >= process_started_s() else None


def tell_launcher(first: Failure) -> None:
    """Write what torchrun's summary says of this rank: its failure, or that it ended after another one's.

    The file is that of `torch.distributed.elastic.multiprocessing.errors.record`; the oldest is the root cause. Not by
    that function, which would have a stack trace for a user's mistake, and none older than another one.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is None:
        return
    text = first.text if first.is_own else str(FollowError(first))
    told = {"message": text, "extraInfo": {"timestamp": str(int(first.time_s) + (not first.is_own))}}
    Path(path).write_bytes(orjson.dumps({"message": told}))


def line_of(walked: Iterable[tuple[FrameType, int]]) -> str:
    """The first line of ours in a stack that `traceback.walk_stack` walks, innermost first; empty if none is."""
    for frame, line in walked:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == OURS:
            return f"{module.replace('.', '/')}.py:{line} in {frame.f_code.co_name}"
    return ""


def line_of_error(error: BaseException) -> str:
    """The innermost line of ours that an error came through; empty if none."""
    return line_of(reversed(list(walk_tb(error.__traceback__))))
