"""Signs of life of every rank, so that when one hangs or dies the others can say which, and where it was."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from traceback import walk_stack
from types import TracebackType
from typing import TYPE_CHECKING, Self

import orjson
import torch
from torch.distributed import DistError

from foundation.goodput.journal import Journal
from foundation.parallel.failures import (
    CONNECT,
    Failure,
    FollowError,
    PeerError,
    first_failure,
    line_of,
    line_of_error,
    num_ranks,
    open_board,
    own_rank,
    read_failure,
    tell_launcher,
)
from serving.errors import Problem

if TYPE_CHECKING:
    from torch.distributed import Store

BEAT_S = 1.0
SILENT_BEATS = 2.5
LOST_BEATS = 3
NAMED = 8
GIVING_UP = "foundation/parallel/watch.py"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what may hang."""

    of_collectives: timedelta
    of_the_process: timedelta


def patience(timeout: timedelta) -> Patience:
    """The first to lose patience after `timeout` is who can tell best, the other one after twice as long.

    With gloo that is the collective, which raises an error; NCCL's would abort the process, so there it is the watch.
    """
    if torch.cuda.is_available():
        return Patience(of_collectives=2 * timeout, of_the_process=timeout)
    return Patience(of_collectives=timeout, of_the_process=2 * timeout)


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rank last said of itself.

    Attributes:
        process: its id and host.
        beat: how many signs it has given.
        moves: what it has done so far, as a count: the rank with the fewest is the one that the others wait for.
        place: where it is, for people.
        line: of our code, where its main thread is.
    """

    rank: int
    process: str
    beat: int
    moves: int
    place: str
    line: str


class Watch:
    """Gives this rank's signs of life from a thread, and ends the process if nothing else ends a hang.

    Args:
        journal: knows what this rank is doing.
        timeout: see `patience`.
    """

    def __init__(self, journal: Journal, timeout: timedelta) -> None:
        self._journal = journal
        self._limit_s = patience(timeout).of_the_process.total_seconds()
        self._main, self._beat = threading.get_ident(), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)

    def why(self, cause: str, line: str) -> Problem:
        """What this rank says when it can not go on: where it was, and for which ranks it waited, by their signs.

        Those that give no sign; else those that have done less; else those that do not wait at the same `line`.
        """
        before = _read_signs()
        time.sleep(SILENT_BEATS * BEAT_S)
        after = _read_signs()
        peers = [rank for rank in range(num_ranks()) if rank != own_rank()]
        alive = [after[rank] for rank in peers if rank in after and after[rank] != before.get(rank)]
        silent = [rank for rank in peers if rank not in [sign.rank for sign in alive]]
        least = min((sign.moves for sign in alive), default=0)
        behind = [sign.rank for sign in alive if sign.moves == least < self._journal.moves]
        elsewhere = [sign.rank for sign in alive if sign.line != line and not sign.line.startswith(GIVING_UP)]
        suspects = silent or behind or elsewhere or peers
        what = "gives no sign of life; its last was" if silent else "is alive"
        who = [_described(rank, after.get(rank), what) for rank in suspects[:NAMED]]
        return Problem(
            where=f"rank {own_rank()}, {self._journal.place}, at {line}",
            expected=f"{', '.join(f'rank {rank}' for rank in suspects[:NAMED])} to take part",
            got=f"{cause}; {'; '.join(who)}",
            remedy="Look at what that process and its machine are doing, or did last; then run the same command, which "
            "goes on from the newest checkpoint. `foundation.training.timeout` says how long a rank is waited for.",
        )

    def _sign(self) -> Sign:
        self._beat += 1
        process = f"process {os.getpid()} on {socket.gethostname()}"
        return Sign(own_rank(), process, self._beat, self._journal.moves, self._journal.place, self._line())

    def _line(self) -> str:
        frame = sys._current_frames().get(self._main)  # pyright: ignore[reportPrivateUsage] - the documented way to it
        return line_of(walk_stack(frame)) if frame else ""

    def _run(self) -> None:
        board: Store | None = None
        lost, moves, still = 0, -1, 0  # beats, not seconds: while a process is stopped, it does not hang
        while True:  # the first sign at once: a rank may be gone within a beat
            try:
                board = board or open_board()
                board.set(f"sign/{own_rank()}", orjson.dumps(asdict(self._sign())).decode())
                lost = 0
            except RuntimeError:
                lost += board is not None or self._journal.has_begun  # before that, it may not be there yet
                if lost == LOST_BEATS and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                    self._end(_orphaned())
            still = still + 1 if self._journal.moves == moves else 0
            moves = self._journal.moves
            if self._journal.has_begun and still * BEAT_S > self._limit_s:
                self._end(self.why(f"nothing happened for {self._limit_s:,.0f} s", self._line()))
            if self._over.wait(BEAT_S):
                return

    def _end(self, problem: Problem) -> None:
        """Nothing but the end of the process ends what hangs in the main thread."""
        first = first_failure(Failure.of(PeerError(problem)))
        tell_launcher(first)
        sys.stderr.write(f"\n{problem if first.is_own else FollowError(first)}\n")
        sys.stderr.flush()
        os._exit(first.exit_code)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(CONNECT.total_seconds())


@contextmanager
def watched(journal: Journal, timeout: timedelta) -> Iterator[None]:
    """Within the block this rank gives signs of life; what ends it is told to the other ranks, first of all.

    Raises:
        PeerError: another rank hangs or is gone, without having told why.
        FollowError: another rank has told why it failed.
    """
    if num_ranks() == 1:
        yield
        return
    with Watch(journal, timeout) as watch:
        try:
            yield
        except Exception as error:
            if not is_of_peers(error):
                first_failure(Failure.of(error))  # the others learn of it before they lose this process
                raise
            told = read_failure()
            if told is None:
                own = PeerError(watch.why(_in_short(error), line_of_error(error)))
                told = first_failure(Failure.of(own))
                if told.is_own:
                    raise own from error
            raise FollowError(told) from error


def is_of_peers(error: BaseException) -> bool:
    """Whether an error says that other ranks did not take part, and not what this one did wrong."""
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def _in_short(error: BaseException) -> str:
    """The first line, without places in the library's source and its guesses.

    Example:
        >>> _in_short(RuntimeError("[/a/gloo/pair.cc:5] Read error: reset by peer. This is typically caused by a bug"))
        'Read error: reset by peer'
    """
    first = re.sub(r"\[/[^]]*\] ", "", str(error).partition("\n")[0])
    return first.partition(". This is typically")[0]


def _described(rank: int, sign: Sign | None, what: str) -> str:
    if sign is None:
        return f"rank {rank} was never heard of"
    return f"rank {rank} ({sign.process}) {what} {sign.place}, at {sign.line or 'no line of ours'}"


def _read_signs() -> dict[int, Sign]:
    """By rank; without those that never gave one. Empty where the store is gone."""
    found: dict[int, Sign] = {}
    try:
        board = open_board()
        for rank in range(num_ranks()):
            if board.check([f"sign/{rank}"]):
                found[rank] = Sign(**orjson.loads(board.get(f"sign/{rank}")))
    except RuntimeError:
        return {}
    return found


def _orphaned() -> Problem:
    return Problem(
        where=f"rank {own_rank()}",
        expected="the launcher that started it",
        got="nobody at its address",
        remedy="This process ends, so that a new launch has the work folder for itself.",
    )
