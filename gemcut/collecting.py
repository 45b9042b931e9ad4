"""Python's search for unreachable cycles, put off while a command starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No search in this block; what is there at its end is taken to stay, and is searched by none that comes later.

    Importing torch and TorchRec makes half a million objects that stay, and searches them time and again as they come:
    a sixth of what the imports take. Only the first such block of a process does this, since in a later one objects
    may be about to go.
    """
    if gc.get_freeze_count() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
