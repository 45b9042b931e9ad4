"""How well a training pass used the machine: rates, waiting, and the share of the peak that went into useful work."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foundation.data.reader import Reader
from foundation.data.store import Store
from foundation.efficiency.flops import FORWARD_AND_BACKWARD, counting_model, estimated_useful_flops
from foundation.efficiency.peak import matmul_peak
from foundation.training.job import FoundationJob
from foundation.training.stream import StreamReport

COUNTED_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class PassEfficiency:
    """Of one rank's pass.

    Attributes:
        rows_per_s: candidates learned from, at every visit.
        events_per_s: history events read.
        data_wait_ratio: share of the time that the model waited for the reader, in [0, 1].
        useful_flops_per_row: forward and backward, without padding and without computing anything twice.
        peak_flops_per_s: of this machine's matrix products in float32, measured after the pass.
        e2e_mfu: useful FLOPs a second over the peak, in [0, 1]; a forward pass that scores a row by averaged parameters
            before it is learned is useful too.
    """

    rows_per_s: float
    events_per_s: float
    data_wait_ratio: float
    useful_flops_per_row: float
    peak_flops_per_s: float
    e2e_mfu: float


def pass_efficiency(job: FoundationJob, report: StreamReport) -> PassEfficiency:
    """Measures of a pass, out of its counts and its times; takes one or two seconds.

    FLOPs a row are those of a batch in the middle of the training period.

    Args:
        job: what was trained.
        report: of this rank's pass.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    learning, peak = training_flops_per_row(job), matmul_peak(device).flops_per_s
    seconds = max(report.seconds, 1e-9)
    scoring = 0 if job.config.training.average_steps is None else learning / FORWARD_AND_BACKWARD
    flops = learning * report.num_rows_learned + scoring * report.num_rows
    return PassEfficiency(
        rows_per_s=report.num_rows_learned / seconds,
        events_per_s=report.num_events / seconds,
        data_wait_ratio=report.data_wait_seconds / seconds,
        useful_flops_per_row=learning,
        peak_flops_per_s=peak,
        e2e_mfu=flops / seconds / peak,
    )


def training_flops_per_row(job: FoundationJob) -> float:
    """Useful FLOPs of forward and backward, a candidate of the batch in the middle of the training period."""
    store = Store.open(job.store, job.schema)
    positions = store.select(end=job.until_us)
    requests = min(job.config.training.batch_requests, len(positions))
    middle = (len(positions) - requests) // 2
    with Reader(store, job.schema, positions[middle : middle + requests], max(requests, 1), prefetch=0) as reader:
        batches = list(reader)
    if not batches:
        return 0.0
    count = estimated_useful_flops(counting_model(job.schema, job.config.model), batches, num_requests=COUNTED_REQUESTS)
    return count.training / batches[0].num_candidates
