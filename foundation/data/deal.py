"""Who reads which request of a batch, so that the ranks' work is even: the heaviest requests with the lightest."""

from __future__ import annotations

import numpy as np

from foundation.data.batch import Int64Array
from foundation.data.history import as_of
from foundation.data.store import Store


def deal(work: Int64Array, num_batch: int, world_size: int) -> Int64Array:
    """The rank that gets each request, the same whoever computes it.

    Within each batch the heaviest request left goes to the rank with the least work so far, the first of them where
    several have as little: no rank has more than the mean and one request.

    Args:
        work: [N] int64, at least 1 each: what the requests cost.
        num_batch: requests a batch; the last may have fewer.
        world_size: ranks.

    Returns:
        [N] int64, each in [0, world_size).

    Example:
        >>> deal(np.array([9, 1, 1, 8, 2, 1]), 6, 2).tolist()
        [0, 0, 0, 1, 1, 1]

    Source: longest processing time first (Graham 1969), for sub-batches of one request; batches side by side are ours.
    """
    num_batches = -(-len(work) // num_batch)
    tasks = np.zeros(num_batches * num_batch, dtype=np.int64)
    tasks[: len(work)] = work
    tasks = tasks.reshape(num_batches, num_batch)
    order = np.argsort(-tasks, axis=1, kind="stable")
    owners, loads = np.zeros_like(tasks), np.zeros((num_batches, world_size), dtype=np.int64)
    batches = np.arange(num_batches)
    for places in order.T:
        lightest = loads.argmin(axis=1)
        owners[batches, places] = lightest
        loads[batches, lightest] += tasks[batches, places]
    return owners.reshape(-1)[: len(work)]


def work_of(store: Store, positions: Int64Array, limits: dict[str, int]) -> Int64Array:
    """[N] int64: candidates of each request and events of its histories, out of the store's arrays alone.

    Args:
        store: an open store.
        positions: [N] int64.
        limits: newest events by log.
    """
    users, at = store.users_of_requests[positions], store.times[positions]
    work = store.candidate_counts[positions].copy()
    for log, limit in limits.items():
        events = store.events[log]
        first, last = as_of(events.times, events.starts[users], events.ends[users], at=at, limit=limit)
        work += last - first
    return work
