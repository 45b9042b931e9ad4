"""Parts of a batch: some of its requests, in any order and any number of times, and some of their candidates."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from foundation.data.batch import History, Int64Array, RequestBatch
from foundation.data.blocks import PER_ROW
from foundation.data.history import slice_rows


def keep_rows(batch: RequestBatch, kept: NDArray[np.bool_]) -> RequestBatch:
    """The batch with some of its candidates; requests without any go, and their histories with them.

    Args:
        batch: of C candidates.
        kept: [C] bool.
    """
    counts = np.diff(batch.candidate_offsets)
    left = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
    requests = np.flatnonzero(left)
    return selected(batch, requests, sizes=left[requests], rows=np.flatnonzero(kept))


def selected(batch: RequestBatch, requests: Int64Array, *, sizes: Int64Array, rows: Int64Array) -> RequestBatch:
    """Some requests with all their events, and some candidates of each.

    Args:
        batch: of B requests and C candidates.
        requests: [N] int64, places in the batch.
        sizes: [N] int64, how many candidates each gets.
        rows: [sum of sizes] int64, places of these candidates in the batch, request by request.
    """
    changed = {
        field.name: getattr(batch, field.name)[rows if field.name in PER_ROW else requests]
        for field in fields(RequestBatch)
        if field.name not in ("candidate_offsets", "histories")
    }
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    histories = {log: _events(history, requests) for log, history in batch.histories.items()}
    return replace(batch, **changed, candidate_offsets=offsets, histories=histories)


def _events(history: History, requests: Int64Array) -> History:
    offsets, rows = slice_rows(history.offsets[requests], history.offsets[requests + 1])
    return History(offsets, history.ids[rows], history.numbers[rows], history.times[rows])
