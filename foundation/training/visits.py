"""One pass in time order: each request once for what is known of it soon, and again for each label that comes late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from foundation.data.batch import Float32Array, Int64Array, RequestBatch
from foundation.data.reader import Reader, ReaderState
from foundation.data.schema import Schema
from foundation.data.selection import keep_rows
from foundation.data.store import Store
from foundation.parallel.world import World
from foundation.training.labels import counted_labels, label_delays
from foundation.training.schedule import FIRST, turns

THINNING_REQUESTS = 1024
MAX_THINNING = 16
"""Requests of a second visit for one of a first: no more, as they are all read before rows are dropped."""


class VisitState(ReaderState):
    """Where the reader of one kind of visit is, and how many requests its batches have, counted once and kept."""

    batch_requests: int


VisitsState = dict[str, VisitState]

VisitsPlace = dict[int, int]
"""Requests that each delay's reader has read."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A batch, and what may be learned from it now.

    Attributes:
        batch: requests with all their labels, for evaluation. Of a second visit only rows that have something to learn.
        labels: [C, K] float32; NaN where unknown, and where known only earlier or later than this visit.
        is_first: the rows are scored by a model that has not seen them.
    """

    batch: RequestBatch
    labels: Float32Array
    is_first: bool


class Visits:
    """The batches of one pass, as a `Reader` has them: iterate, save the state, go on from it.

    Args:
        store: an open store.
        schema: the project's data sections.
        positions: [N] int64, ascending; the requests to visit.
        batch_requests: requests a global batch of first visits; of second visits as many as give it as many rows.
        objectives: those whose late labels are learned.
        until_us: labels that are ripe later are never learned, microseconds since 1970 UTC.
        world: the ranks that share each batch.
        history_limits: newest events by log, where other than the schema's.
    """

    def __init__(
        self,
        store: Store,
        schema: Schema,
        positions: Int64Array,
        batch_requests: int,
        *,
        objectives: tuple[str, ...],
        until_us: int,
        world: World,
        history_limits: dict[str, int] | None = None,
    ) -> None:
        self._schema, self._store, self._world = schema, store, world
        delays, wanted = label_delays(schema), np.isin(list(schema.objectives), objectives)
        late = [int(delay) for delay in np.unique(delays[wanted]) if delay != FIRST]
        self._learned = {delay: np.flatnonzero(wanted & (delays == delay)) for delay in (FIRST, *late)}
        times = store.times[positions]
        ripe = {delay: np.searchsorted(times, until_us - delay, side="right") for delay in late}
        chosen = {FIRST: positions, **{delay: positions[:count] for delay, count in ripe.items()}}
        self._chosen, self._history_limits = chosen, history_limits
        self._batch_requests = {
            delay: batch_requests * self._thinning(selected, delay) for delay, selected in chosen.items()
        }
        self._times = {delay: times[: len(selected)] for delay, selected in chosen.items()}
        self._readers = {delay: self._reader(delay) for delay in chosen}

    def __len__(self) -> int:
        """Batches that are left, of both kinds; the same on every rank."""
        return self.num_left(self.place)

    def __iter__(self) -> Iterator[Visit]:
        """Visits from where the readers are."""
        place = self.place
        left = {delay: times[place[delay] :] for delay, times in self._times.items()}
        batches = {delay: iter(reader) for delay, reader in self._readers.items()}
        for delay in turns(left, self._batch_requests).tolist():
            yield self._visit(next(batches[delay]), delay)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers.values():
            reader.close()

    @property
    def place(self) -> VisitsPlace:
        """Where the readers are, for `state_dict` and `num_left`."""
        return {delay: reader.place for delay, reader in self._readers.items()}

    def num_left(self, place: VisitsPlace) -> int:
        """Batches that are left from a place on."""
        return sum(reader.num_left(place[delay]) for delay, reader in self._readers.items())

    def state_dict(self, place: VisitsPlace | None = None) -> VisitsState:
        """Where every reader is, by delay; or was, at a place."""
        at = self.place if place is None else place
        return {
            str(delay): {
                **reader.state_dict(at[delay], learned=self._labels_of(delay)),
                "batch_requests": self._batch_requests[delay],
            }
            for delay, reader in self._readers.items()
        }

    def load_state_dict(self, state: VisitsState) -> None:
        """Go to where visits of the same requests were; see `Reader.load_state_dict`."""
        for delay in self._readers:
            saved = state[str(delay)]
            if saved["next"] and saved["batch_requests"] != self._batch_requests[delay]:
                self._batch_requests[delay] = saved["batch_requests"]
                self._readers[delay] = self._reader(delay)
            self._readers[delay].load_state_dict(saved)

    def _reader(self, delay: int) -> Reader:
        """Requests of a kind of visit, from the first on."""
        return Reader(
            self._store,
            self._schema,
            self._chosen[delay],
            self._batch_requests[delay],
            rank=self._world.rank,
            world_size=self._world.size,
            history_limits=self._history_limits,
        )

    def _labels_of(self, delay: int) -> tuple[str, ...]:
        """Objectives whose labels a kind of visit reads: those that it learns, and their conditions."""
        names = [list(self._schema.objectives)[place] for place in self._learned[delay]]
        return tuple(dict.fromkeys([*names, *filter(None, map(self._schema.masked_by, names))]))

    def _thinning(self, positions: Int64Array, delay: int) -> int:
        """How many requests have the rows of one, as far as they have something to learn at this visit.

        Counted among the first requests of the pass with ripe labels, so that passes which begin alike visit alike.
        """
        if delay == FIRST:
            return 1
        none = dict.fromkeys(self._schema.data.events, 0)
        first = positions[:THINNING_REQUESTS]
        with Reader(self._store, self._schema, first, THINNING_REQUESTS, history_limits=none, prefetch=0) as reader:
            counted = next(iter(reader), None)
        if counted is None:
            return 1
        known = self._is_known(counted, delay)
        return min(max(1, len(known) // max(1, int(known.sum()))), MAX_THINNING)

    def _visit(self, batch: RequestBatch, delay: int) -> Visit:
        places = self._learned[delay]
        if delay != FIRST:
            batch = keep_rows(batch, self._is_known(batch, delay))
        labels = np.full_like(batch.labels, np.nan)
        labels[:, places] = counted_labels(batch, self._schema)[:, places]
        return Visit(batch, labels, delay == FIRST)

    def _is_known(self, batch: RequestBatch, delay: int) -> NDArray[np.bool_]:
        return np.any(np.isfinite(counted_labels(batch, self._schema)[:, self._learned[delay]]), axis=1)
