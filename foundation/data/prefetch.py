"""Work ahead of the consumer in one thread, a bounded number of results ahead, leaving no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from queue import Empty, Queue
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item], ahead: int) -> Generator[Item, None, None]:
    """The same items, made by a thread that is at most `ahead` of them in front; with 0, in the caller's thread.

    An error in the thread is raised here, in its place. However the consumer leaves, the thread has ended when the
    iterator is closed.

    Example:
        >>> list(prefetched(range(3), 2))
        [0, 1, 2]
    """
    if ahead < 1:
        yield from items
        return
    queue: Queue[tuple[Item | None, BaseException | None]] = Queue(maxsize=ahead)
    stopped = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, queue, stopped), name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if error is not None:
                if isinstance(error, StopIteration):
                    return
                raise error
            yield item  # pyright: ignore[reportReturnType] - an item may be None itself
    finally:
        stopped.set()
        _drain(queue)  # frees the one `put` that the thread may be in, or may yet come to
        thread.join()


def _fill(
    items: Iterable[Item], queue: Queue[tuple[Item | None, BaseException | None]], stopped: threading.Event
) -> None:
    try:
        for item in items:
            queue.put((item, None))
            if stopped.is_set():
                return
        end: BaseException = StopIteration()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer raises it
        end = error
    queue.put((None, end))


def _drain(queue: Queue[tuple[Item | None, BaseException | None]]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
