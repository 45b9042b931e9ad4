import pytest

from foundation.data.reader import Reader
from foundation.data.store import Store
from foundation.efficiency import measures
from foundation.efficiency.flops import counting_model, useful_flops
from foundation.efficiency.peak import Peak
from foundation.training.stream import StreamReport


def test_measures_of_a_pass_follow_from_its_counts_and_times(tiny_teacher, monkeypatch):
    job = tiny_teacher.space().foundation_job()
    monkeypatch.setattr(measures, "matmul_peak", lambda device: Peak(1e9, 512, "float32", 1))
    report = StreamReport(
        num_steps=3,
        num_rows=150,
        num_rows_learned=200,
        num_events=1000,
        seconds=4.0,
        data_wait_seconds=1.0,
        resumed_at_step=0,
        checkpoint="-",
    )
    found = measures.pass_efficiency(job, report)
    assert (found.rows_per_s, found.events_per_s, found.data_wait_ratio) == (50, 250, 0.25)
    learned_and_scored = 200 + 150 / 3
    assert found.e2e_mfu == pytest.approx(found.useful_flops_per_row * learned_and_scored / 4 / 1e9)


def test_flops_a_row_are_of_the_batch_in_the_middle(tiny_teacher):
    job = tiny_teacher.space().foundation_job()
    store = Store.open(job.store, job.schema)
    positions = store.select(end=job.until_us)
    size = job.config.training.batch_requests
    first = (len(positions) - size) // 2
    (batch,) = Reader(store, job.schema, positions[first : first + size], size, prefetch=0)
    exact = useful_flops(counting_model(job.schema, job.config.model), [batch]).training / batch.num_candidates
    assert measures.training_flops_per_row(job) == pytest.approx(exact, rel=0.1)
