"""Which labels a model may learn: those whose condition is met, and that are known."""

from __future__ import annotations

import numpy as np

from foundation.data.batch import Float32Array, Int64Array, RequestBatch
from foundation.data.schema import MICROSECOND, Schema


def label_delays(schema: Schema) -> Int64Array:
    """[K] int64, microseconds: how long after its request each objective's label, and its condition, is known."""
    return np.array([schema.settled_after(name) // MICROSECOND for name in schema.objectives], dtype=np.int64)


def counted_labels(batch: RequestBatch, schema: Schema) -> Float32Array:
    """[C, K] float32: the batch's labels, with NaN where a masked objective's condition is not known to be met."""
    places = {name: place for place, name in enumerate(schema.objectives)}
    labels = batch.labels.copy()
    for name, place in places.items():
        if condition := schema.masked_by(name):
            labels[batch.labels[:, places[condition]] != 1, place] = np.nan
    return labels


def settled_labels(batch: RequestBatch, schema: Schema, until_us: int) -> Float32Array:
    """Labels of a batch, NaN where a label was not yet known at the cut.

    Args:
        batch: of requests before the cut.
        schema: whose objectives say how long their labels take.
        until_us: the training cut, microseconds since 1970 UTC.

    Returns:
        [C, K] float32: `counted_labels`, with NaN where request time + delay > until_us.
    """
    labels, times = counted_labels(batch, schema), np.repeat(batch.times, np.diff(batch.candidate_offsets))
    return np.where(times[:, None] + label_delays(schema) > until_us, np.float32(np.nan), labels)
