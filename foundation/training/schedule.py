"""When labels that come late are learned: the order of a pass's batches, from the times of its requests alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from foundation.data.batch import Int64Array

FIRST = 0
"""The delay of a first visit."""


def turns(times: Mapping[int, Int64Array], batch_requests: Mapping[int, int]) -> Int64Array:
    """Which visit has each turn: a batch of requests for the first time, or again as their late labels are ripe.

    A late batch is due when the labels of its last request are ripe: a delay after that request. It is learned right
    before the first batch of new requests that begins after it was due; strictly after, as an event at a moment is not
    before that moment. Late batches due after the last new request follow at the end.

    Args:
        times: by delay, [N] int64 ascending, when the requests that are left happened. `FIRST` are the first visits.
        batch_requests: by delay, requests a batch.

    Returns:
        [number of batches] int64: the delay of the visit whose next batch has this turn.

    Example:
        >>> turns({FIRST: np.array([0, 10, 20]), 5: np.array([0, 10])}, {FIRST: 1, 5: 1}).tolist()
        [0, 5, 0, 5, 0]

    Source: ours, see `docs/decisions.md`.
    """
    begins = times[FIRST][:: batch_requests[FIRST]]
    late = sorted(delay for delay in times if delay != FIRST)
    dues = [_last_times(times[delay], batch_requests[delay]) + delay for delay in late]
    due = np.concatenate([*dues, begins[:0]])
    delay = np.repeat(late, [len(batches) for batches in dues]).astype(np.int64)
    before = np.searchsorted(begins, due, side="right")  # the first batch that begins after it

    visits = np.concatenate([np.zeros(len(begins), np.int64), delay])
    places = np.concatenate([np.arange(len(begins)), before])
    is_first = np.concatenate([np.ones(len(begins), bool), np.zeros(len(due), bool)])
    moments = np.concatenate([begins, due])
    return visits[np.lexsort((visits, moments, is_first, places))]


def _last_times(times: Int64Array, batch_requests: int) -> Int64Array:
    num_batches = -(-len(times) // batch_requests)
    lasts = np.minimum((np.arange(num_batches) + 1) * batch_requests, len(times)) - 1
    return times[lasts]
