import numpy as np
import pytest

from foundation.data.store import Store
from foundation.efficiency.bench import _spread_batches


@pytest.mark.parametrize("number", [1, 2, 3, 1000])
def test_batches_lie_around_the_middles_of_equal_parts_of_the_period_the_middle_one_first(tiny_teacher, number):
    job = tiny_teacher.space().foundation_job()
    store = Store.open(job.store, job.schema)
    positions, size = store.select(end=job.until_us), job.config.training.batch_requests
    batches = _spread_batches(job, store, positions, number)
    n = min(number, len(positions) // size)
    assert [batch.num_requests for batch in batches] == n * [size]
    centres = [np.searchsorted(positions, batch.positions).mean() + 1 / 2 for batch in batches]
    parts = np.roll(np.arange(n), -(n // 2))
    np.testing.assert_allclose(centres, (parts + 1 / 2) / n * len(positions), atol=1)
    assert len(np.unique(np.concatenate([batch.positions for batch in batches]))) == n * size
