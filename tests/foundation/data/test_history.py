from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foundation.data.history import as_of, slice_rows

moments = st.integers(0, 12)
logs = st.lists(st.lists(moments, max_size=12).map(sorted), min_size=1, max_size=6)


@given(data=st.data(), users=logs, limit=st.integers(0, 14))
def test_history_is_what_a_loop_over_all_events_finds(data, users, limit):
    ends = np.cumsum([len(user) for user in users])
    starts = ends - [len(user) for user in users]
    times = np.array([time for user in users for time in user], dtype=np.int64)
    requests = data.draw(st.lists(st.tuples(st.integers(0, len(users) - 1), moments), max_size=8))
    who = np.array([user for user, _ in requests], dtype=np.int64)
    at = np.array([time for _, time in requests], dtype=np.int64)

    first, last = as_of(times, starts[who], ends[who], at=at, limit=limit)

    for (user, moment), begin, end in zip(requests, first, last, strict=True):
        seen = [row for row in range(starts[user], ends[user]) if times[row] < moment]
        assert list(range(begin, end)) == seen[len(seen) - min(limit, len(seen)) :]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=9))
def test_rows_of_slices_are_the_slices_one_after_the_other(slices):
    first = np.array([start for start, _ in slices], dtype=np.int64)
    offsets, rows = slice_rows(first, first + np.array([size for _, size in slices], dtype=np.int64))
    assert [rows[a:b].tolist() for a, b in pairwise(offsets)] == [
        list(range(start, start + size)) for start, size in slices
    ]
