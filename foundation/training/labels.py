"""Labels that are settled at the training cut; the others belong to the future."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from foundation.data.batch import Float32Array, Int64Array, RequestBatch
from foundation.data.schema import Schema

MICROSECOND = timedelta(microseconds=1)


def label_delays(schema: Schema) -> Int64Array:
    """[K] int64, microseconds: how long after its request each objective's label is known."""
    return np.array([objective.delay // MICROSECOND for objective in schema.objectives.values()], dtype=np.int64)


def settled_labels(batch: RequestBatch, schema: Schema, until_us: int) -> Float32Array:
    """Labels of a batch, NaN where a label was not yet known at the cut.

    Args:
        batch: of requests before the cut.
        schema: whose objectives say how long their labels take.
        until_us: the training cut, microseconds since 1970 UTC.

    Returns:
        [C, K] float32: the batch's labels, with NaN where request time + delay > until_us.
    """
    times = np.repeat(batch.times, np.diff(batch.candidate_offsets))
    return np.where(times[:, None] + label_delays(schema) > until_us, np.float32(np.nan), batch.labels)
