"""The as-of cut: which events of a user's log a request may see. The newest ones strictly before it, and no other."""

from __future__ import annotations

import numpy as np

from foundation.data.batch import Int64Array


def as_of(
    times: Int64Array, starts: Int64Array, ends: Int64Array, *, at: Int64Array, limit: int
) -> tuple[Int64Array, Int64Array]:
    """Each request's history as a slice of the log, by one binary search of all requests at once.

    Args:
        times: [E] int64, ascending within each user's events.
        starts: [B] int64, where the events of the request's user start in the log.
        ends: [B] int64, where they end.
        at: [B] int64, when the request happens, in the unit of `times`.
        limit: most events a request, at least 0.

    Returns:
        (first, last), each [B] int64: request b sees events first[b]:last[b], all with a time below at[b]. An event at
        that very time is not seen: what happens in a request must not tell of its outcome.

    Example:
        >>> times = np.array([10, 20, 20, 30, 5])
        >>> as_of(times, np.array([0, 0, 4]), np.array([4, 4, 5]), at=np.array([20, 31, 5]), limit=2)
        (array([0, 2, 4]), array([1, 4, 4]))
    """
    low, high = starts.astype(np.int64), ends.astype(np.int64)
    if len(times):
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) >> 1
            open_, before = low < high, times[np.minimum(middle, len(times) - 1)] < at
            low = np.where(open_ & before, middle + 1, low)
            high = np.where(open_ & ~before, middle, high)
    return np.maximum(starts, low - limit), low


def slice_rows(first: Int64Array, last: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The rows of many slices, one slice after the other.

    Args:
        first: [B] int64.
        last: [B] int64, at least `first`.

    Returns:
        offsets [B + 1] and rows [offsets[B]], int64: slice b is rows[offsets[b]:offsets[b + 1]].

    Example:
        >>> slice_rows(np.array([5, 9, 0]), np.array([7, 9, 1]))
        (array([0, 2, 2, 3]), array([5, 6, 0]))
    """
    lengths = last - first
    offsets = np.zeros(len(first) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    rows = np.arange(offsets[-1], dtype=np.int64)
    rows += np.repeat(first - offsets[:-1], lengths)
    return offsets, rows
