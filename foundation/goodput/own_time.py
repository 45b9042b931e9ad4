"""Seconds that a thread wanted a core: what it did itself, apart from what it waited for."""

from __future__ import annotations

import time
from pathlib import Path

SCHEDULER = Path("/proc/thread-self/schedstat")
NANOSECOND = 1e-9


def own_seconds(scheduler: Path = SCHEDULER) -> float:
    """Seconds that the calling thread has been on a core, or ready for one that others had; only differences matter.

    A thread that waits for a message, a lock or a disk wants no core, so of a CPU rank this is its work and none of the
    time that it waited for other ranks. It means nothing where a GPU works: a thread waits for a GPU by asking again
    and again. Where Linux does not say how long a thread was ready (`scheduler`), it is the time on a core alone.

    Source: ours; `Documentation/scheduler/sched-stats.rst` of Linux: nanoseconds on a core, then nanoseconds waiting
    for one.
    """
    try:
        running, ready, _ = (int(number) for number in scheduler.read_text().split())
    except (OSError, ValueError):
        running = ready = 0
    # A thread that asks has run: 0 is what Linux says where it keeps no account.
    return (running + ready) * NANOSECOND if running else time.thread_time()
