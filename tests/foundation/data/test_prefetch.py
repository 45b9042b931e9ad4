import threading
from itertools import count

import pytest

from foundation.data.prefetch import prefetched


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_items_come_in_order_and_no_thread_stays(ahead):
    assert list(prefetched(iter([None, *range(20)]), ahead)) == [None, *range(20)]
    assert threads() == []


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_in_its_place(ahead):
    def failing():
        yield 1
        raise OSError("disk gone")

    items = prefetched(failing(), ahead)
    assert next(items) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(items)
    assert threads() == []


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early_ends_the_thread(taken):
    items = prefetched(count(), 2)
    assert [next(items) for _ in range(taken)] == list(range(taken))
    assert len(threads()) == bool(taken)
    items.close()
    assert threads() == []


def test_the_thread_is_at_most_so_far_ahead():
    made = []
    gate = threading.Event()

    def source():
        for number in range(10):
            made.append(number)
            if number == 4:
                gate.set()
            yield number

    items = prefetched(source(), 3)
    next(items)
    assert gate.wait(timeout=30)  # one taken, three waiting, one in hand: the fifth is the last it may make
    assert made == [0, 1, 2, 3, 4]
    items.close()
    assert made[-1] <= 5
