"""The one definition of an event's age: what the reader's batches, the logged replay and the ranker hand to a model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DAY_US = 86_400_000_000


def age_days(now_us: NDArray[np.int64] | int, times_us: NDArray[np.int64]) -> NDArray[np.float32]:
    """Days from events to their request: float32 of the microseconds, then divided in float32.

    Args:
        now_us: the request's time, or each event's request's, microseconds since 1970 UTC.
        times_us: [T] int64, the events' times.

    Returns:
        [T] float32.

    Example:
        >>> age_days(2 * DAY_US, np.array([0, DAY_US]))
        array([2., 1.], dtype=float32)
    """
    return (now_us - times_us).astype(np.float32) / np.float32(DAY_US)
