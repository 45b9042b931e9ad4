"""Batches of requests out of a store: prefetched, sharded by rank, resumable at the exact request."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypedDict

import numpy as np

from foundation.data.batch import History, Int64Array, RequestBatch
from foundation.data.blocks import Block, BlockReader, EventReader
from foundation.data.deal import deal, work_of
from foundation.data.history import as_of
from foundation.data.past import Past, check_past, past_of
from foundation.data.prefetch import prefetched
from foundation.data.schema import Schema
from foundation.data.store import Store
from serving.errors import MismatchError, Problem

BATCHES_DEALT = 1024
"""At once; where that ends within a row group of the store, the group is read once more."""


class ReaderState(TypedDict):
    """Where a reader is, whatever the number of ranks.

    Attributes:
        next: place in the selection of the first request that no rank has been given yet.
        digest: sha256 of the positions before `next`: it holds for every selection that begins so.
        past: what the store held to there: it holds for every store that begins so.
    """

    next: int
    digest: str
    past: Past


class _Step(NamedTuple):
    """One batch of this rank: its requests, and where the global batch ends in the selection."""

    positions: Int64Array
    end: int


class Reader:
    """One pass over selected requests, in order.

    Global batch i is requests i * B to (i + 1) * B of what is left of the selection. Its requests are dealt to the
    ranks so that each has as many events and candidates to work on; a rank may get none. All ranks take the same number
    of steps and together see the same data whatever their number is. A reader yields what is left: after the last batch
    nothing. For another pass make another reader.

    Args:
        store: an open store.
        schema: the project's data sections; vocabularies, scales and limits are its.
        positions: [N] int64, ascending, from `store.select`.
        batch_requests: B, requests a global batch.
        rank: this process.
        world_size: number of processes.
        history_limits: newest events by log, where other than the schema's; 0 for none.
        prefetch: batches made ahead in a thread; 0 makes them in the caller's.

    Example:
        >>> with Reader(store, schema, store.select(), 128) as reader:  # doctest: +SKIP
        ...     for batch in reader:
        ...         learn(batch)
    """

    def __init__(
        self,
        store: Store,
        schema: Schema,
        positions: Int64Array,
        batch_requests: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        history_limits: dict[str, int] | None = None,
        prefetch: int = 2,
    ) -> None:
        self._positions = np.ascontiguousarray(positions, dtype=np.int64)
        self._batch_requests, self._rank, self._world_size = batch_requests, rank, world_size
        limits = {log: events.limit for log, events in schema.data.events.items()} | (history_limits or {})
        self._check(store, limits)
        self._blocks = BlockReader(store, schema)
        self._events = {log: EventReader(store, schema, log) for log in schema.data.events}
        self._limits, self._prefetch = limits, prefetch
        self._store, self._next = store, 0
        self._objectives = tuple(schema.objectives)
        self._running: Generator[tuple[_Step, RequestBatch], None, None] | None = None

    def __len__(self) -> int:
        """Batches that are left; the same on every rank."""
        return self.num_left(self._next)

    def __iter__(self) -> Iterator[RequestBatch]:
        """Batches from where the reader is; what an earlier iterator had made ahead is dropped."""
        self.close()
        running = self._running = prefetched(self._made(self._next), self._prefetch)
        try:
            for step, batch in running:
                self._next = step.end
                yield batch
        finally:
            running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, if there is one. The reader can be iterated again from where it is."""
        if self._running is not None:
            self._running.close()
            self._running = None

    @property
    def place(self) -> int:
        """Requests that all ranks together were given, or had been when the reader's state was saved."""
        return self._next

    def num_left(self, place: int) -> int:
        """Batches that are left from a place on; the same on every rank."""
        return -(-(len(self._positions) - place) // self._batch_requests)

    def state_dict(self, place: int | None = None, *, learned: Sequence[str] | None = None) -> ReaderState:
        """Where the reader is: after the batches it has yielded, whatever was made ahead; or was, at a place.

        Args:
            place: see `place`; where the reader is if absent.
            learned: objectives whose labels count as read; those of others may still come. All if absent.
        """
        read = self._next if place is None else place
        num_past = int(self._positions[read - 1]) + 1 if read else 0
        past = past_of(self._store, num_past, labels=self._objectives if learned is None else learned)
        return {"next": read, "digest": self._digest(read), "past": past}

    def load_state_dict(self, state: ReaderState) -> None:
        """Go to where a reader of a selection that began like this one was, with this reader's ranks and batch size.

        What had been read then must be the beginning of this selection, and of this store; what follows may differ, as
        where a period ends later, or days were added to the log.

        Raises:
            MismatchError: the store does not begin with what was read, or the selection does not.
        """
        check_past(state["past"], self._store)
        if not 0 <= state["next"] <= len(self._positions) or state["digest"] != self._digest(state["next"]):
            expected = f"a place in this selection of {len(self._positions):,} requests"
            got = f"request {state['next']:,} of another selection, {state['digest'][:12]}"
            remedy = "Go on with the store and the split that the checkpoint was made with, or start afresh."
            raise MismatchError(Problem("checkpoint: reader", expected, got, remedy))
        self.close()
        self._next = state["next"]

    def _check(self, store: Store, limits: dict[str, int]) -> None:
        unknown = sorted(set(limits) - set(store.events))
        assert not unknown, f"history limits of logs that do not exist: {unknown}"
        assert 0 <= self._rank < self._world_size, f"rank {self._rank} of {self._world_size}"
        assert self._batch_requests > 0, f"{self._batch_requests} requests a batch"
        ends = self._positions[[0, -1]] if len(self._positions) else np.array([0, 0])
        assert np.all(np.diff(self._positions) > 0), "positions do not ascend"
        assert ends[0] >= 0, f"position {ends[0]}"
        assert ends[1] < max(store.manifest.num_requests, 1), f"position {ends[1]} of {store.manifest.num_requests}"

    def _digest(self, num_read: int) -> str:
        return hashlib.sha256(self._positions[:num_read].astype("<i8").tobytes()).hexdigest()

    def _steps(self, start: int, stop: int) -> Iterator[_Step]:
        """The batches between two places in the selection; each rank makes the same deal and takes its share."""
        left, size = self._positions[start:stop], self._batch_requests
        mine = np.ones(len(left), dtype=bool)
        if self._world_size > 1:
            mine = deal(work_of(self._store, left, self._limits), size, self._world_size) == self._rank
        for first in range(0, len(left), size):
            here = slice(first, first + size)
            yield _Step(left[here][mine[here]], start + min(first + size, len(left)))

    def _made(self, start: int) -> Iterator[tuple[_Step, RequestBatch]]:
        """Batches from a place in the selection on, so many dealt at once: the first one does not wait for the last."""
        dealt = BATCHES_DEALT * self._batch_requests
        for place in range(start, len(self._positions), dealt):
            yield from self._cut(list(self._steps(place, place + dealt)))

    def _cut(self, steps: list[_Step]) -> Iterator[tuple[_Step, RequestBatch]]:
        """Their batches, cut from blocks that each come from one row group."""
        blocks = self._blocks.read(np.concatenate([*(step.positions for step in steps), self._positions[:0]]))
        pending: list[Block] = []
        for step in steps:
            while sum(block.num_requests for block in pending) < len(step.positions):
                pending.append(next(blocks))
            block = Block.joined(pending or [self._blocks.empty])
            taken, rest = block.split(len(step.positions))
            pending = [rest] if rest.num_requests else []
            yield step, self._batch(taken)

    def _batch(self, block: Block) -> RequestBatch:
        histories = {log: self._history(log, block) for log in self._events}
        return block.batch(histories)

    def _history(self, log: str, block: Block) -> History:
        reader = self._events[log]
        events = reader.events
        first, last = as_of(
            events.times, events.starts[block.users], events.ends[block.users], at=block.times, limit=self._limits[log]
        )
        return reader.history(first, last)
