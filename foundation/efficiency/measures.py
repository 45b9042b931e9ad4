"""How well a pass used the machine: rates, waiting, and the share of the peak that went into useful work."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foundation.config import ModelConfig
from foundation.data.batch import RequestBatch
from foundation.data.schema import Schema
from foundation.efficiency.flops import counting_model, estimated_useful_flops
from foundation.efficiency.peak import matmul_peak

COUNTED_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class PassEfficiency:
    """Of one rank's pass.

    Attributes:
        rows_per_s: candidates scored and learned from.
        events_per_s: history events read.
        data_wait_ratio: share of the time that the model waited for the reader, in [0, 1].
        useful_flops_per_row: forward and backward, without padding and without computing anything twice.
        peak_flops_per_s: of this machine's matrix products, measured after the pass.
        e2e_mfu: useful FLOPs a second over the peak, in [0, 1].
    """

    rows_per_s: float
    events_per_s: float
    data_wait_ratio: float
    useful_flops_per_row: float
    peak_flops_per_s: float
    e2e_mfu: float


def pass_efficiency(
    schema: Schema,
    config: ModelConfig,
    *,
    example: RequestBatch,
    num_rows: int,
    num_events: int,
    seconds: float,
    data_wait_seconds: float,
    device: torch.device,
) -> PassEfficiency:
    """Measures of a pass, out of its counts and its times; takes one or two seconds.

    Args:
        schema: the project's data sections.
        config: the model's.
        example: a batch of the pass, whose FLOPs a row stand for all.
        num_rows: candidates of the pass.
        num_events: history events of the pass.
        seconds: of the whole pass, above 0.
        data_wait_seconds: of them, waiting for the reader.
        device: the pass ran on.
    """
    count = estimated_useful_flops(counting_model(schema, config), [example], num_requests=COUNTED_REQUESTS)
    per_row = count.training / max(example.num_candidates, 1)
    peak = matmul_peak(device).flops_per_s
    rows_per_s = num_rows / seconds
    return PassEfficiency(
        rows_per_s=rows_per_s,
        events_per_s=num_events / seconds,
        data_wait_ratio=data_wait_seconds / seconds,
        useful_flops_per_row=per_row,
        peak_flops_per_s=peak,
        e2e_mfu=per_row * rows_per_s / peak,
    )
