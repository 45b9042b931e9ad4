import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foundation.data.deal import deal

WORK = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 10**6)), max_size=60)


def dealt_one_by_one(work, world_size):
    """Longest processing time first, of one batch, with a heap."""
    heap = [(0, rank) for rank in range(world_size)]
    owners = [0] * len(work)
    for place in sorted(range(len(work)), key=lambda place: (-work[place], place)):
        load, rank = heapq.heappop(heap)
        owners[place] = rank
        heapq.heappush(heap, (load + work[place], rank))
    return owners


@given(work=WORK, num_batch=st.integers(1, 70), world_size=st.integers(1, 9))
def test_each_batch_is_dealt_by_itself_longest_first(work, num_batch, world_size):
    expected = []
    for start in range(0, len(work), num_batch):
        expected += dealt_one_by_one(work[start : start + num_batch], world_size)
    assert deal(np.array(work, dtype=np.int64), num_batch, world_size).tolist() == expected


@given(work=WORK.filter(len), world_size=st.integers(1, 9))
def test_no_rank_has_more_than_the_mean_and_the_heaviest(work, world_size):
    owners = deal(np.array(work), len(work), world_size)
    loads = np.bincount(owners, weights=work, minlength=world_size)
    assert loads.max() <= sum(work) / world_size + max(work)


def test_heavy_tails_are_even_where_pieces_in_order_are_not():
    draw = np.random.default_rng(0)
    work = (1 + np.minimum(512, draw.pareto(1.1, 256 * 50) * 20)).astype(np.int64)
    owners = deal(work, 256, 4).reshape(50, 256)
    in_order = np.repeat(np.arange(4), 64) * np.ones((50, 1), np.int64)
    assert imbalance(work, in_order) > 1.1
    assert imbalance(work, owners) < 1.01


def imbalance(work, owners):
    """The heaviest rank over the mean, mean over batches."""
    ratios = []
    for of_batch, ranks in zip(work.reshape(owners.shape), owners, strict=True):
        loads = np.bincount(ranks.astype(int), weights=of_batch)
        ratios.append(loads.max() / loads.mean())
    return np.mean(ratios)
