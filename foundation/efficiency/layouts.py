"""The same requests in other layouts: alone, chosen, or once a candidate, as a log of impressions has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from foundation.data.batch import History, Int64Array, RequestBatch
from foundation.data.history import slice_rows
from foundation.data.selection import selected


def chosen(batch: RequestBatch, requests: Int64Array) -> RequestBatch:
    """Some requests of a batch, in a given order, with all that is theirs; one may come several times.

    Args:
        batch: requests.
        requests: [N] int64, places in the batch.
    """
    starts = batch.candidate_offsets
    offsets, rows = slice_rows(starts[requests], starts[requests + 1])
    return selected(batch, requests, sizes=np.diff(offsets), rows=rows)


def one_by_one(batch: RequestBatch) -> Iterator[RequestBatch]:
    """Each request as a batch of its own."""
    for place in range(batch.num_requests):
        yield chosen(batch, np.array([place]))


def impression_major(batch: RequestBatch) -> RequestBatch:
    """Every candidate as a request of its own, with the user, the context and the histories once more for each."""
    owner = np.repeat(np.arange(batch.num_requests), np.diff(batch.candidate_offsets))
    every = np.arange(batch.num_candidates)
    return selected(batch, owner, sizes=np.ones_like(every), rows=every)


def num_bytes(batch: RequestBatch) -> int:
    """Bytes of a batch's arrays."""
    own = sum(getattr(batch, field.name).nbytes for field in fields(RequestBatch) if field.name != "histories")
    return own + sum(
        getattr(history, field.name).nbytes for history in batch.histories.values() for field in fields(History)
    )
