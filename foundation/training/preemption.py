"""SIGTERM, which schedulers send some seconds before they take a machine: finish the step, save, and leave."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PREEMPTED = 75
"""The exit code, `EX_TEMPFAIL` of sysexits.h: not done, and the same command goes on."""


class Preempted(SystemExit):
    """The run was asked to leave, and has saved all that it learned.

    Attributes:
        step: the checkpoint's.
    """

    def __init__(self, step: int) -> None:
        super().__init__(PREEMPTED)
        self.step = step


@contextmanager
def termination_asked() -> Iterator[Callable[[], bool]]:
    """Within the block SIGTERM ends nothing: the yielded function says whether it came.

    Signals are a matter of a process's main thread; in another one it never says so.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
