"""Time as the gate sees it: monotonic integer nanoseconds, and a way to wait that tests can do without."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the harness gets its time from."""

    def now_ns(self) -> int:
        """Nanoseconds since some fixed moment; never goes back."""
        ...

    def sleep_until_ns(self, moment_ns: int) -> None:
        """Return at `moment_ns` or later, at once if it has passed."""
        ...


class MonotonicClock:
    """The machine's clock.

    It sleeps and does not spin: the wake-up is part of the latency, as it is in a server that waits for a socket, and a
    spinning harness would keep the processor warmer than a server finds it.
    """

    def now_ns(self) -> int:
        """See `Clock`."""
        return time.perf_counter_ns()

    def sleep_until_ns(self, moment_ns: int) -> None:
        """See `Clock`."""
        while (left_ns := moment_ns - time.perf_counter_ns()) > 0:
            time.sleep(left_ns / 1e9)


class ManualClock:
    """A clock that moves only when told, or when somebody sleeps; simulations run on it in no time.

    Example:
        >>> clock = ManualClock()
        >>> clock.sleep_until_ns(5)
        >>> clock.advance_ns(2)
        >>> clock.now_ns()
        7
    """

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """See `Clock`."""
        return self._now_ns

    def sleep_until_ns(self, moment_ns: int) -> None:
        """See `Clock`."""
        self._now_ns = max(self._now_ns, moment_ns)

    def advance_ns(self, duration_ns: int) -> None:
        """Let time pass, as work does."""
        self._now_ns += duration_ns
