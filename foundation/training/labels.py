"""Which labels a model may learn: those whose condition is met, and that are known."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from foundation.data.batch import Float32Array, Int64Array, RequestBatch
from foundation.data.schema import Schema

MICROSECOND = timedelta(microseconds=1)


def label_delays(schema: Schema) -> Int64Array:
    """[K] int64, microseconds: how long after its request each objective's label, and its condition, is known."""
    own = {name: objective.delay // MICROSECOND for name, objective in schema.objectives.items()}
    conditions = _conditions(schema)
    return np.array([max(own[name], own[conditions.get(name, name)]) for name in own], dtype=np.int64)


def counted_labels(batch: RequestBatch, schema: Schema) -> Float32Array:
    """[C, K] float32: the batch's labels, with NaN where a masked objective's condition is not known to be met."""
    conditions, places = _conditions(schema), {name: place for place, name in enumerate(schema.objectives)}
    labels = batch.labels.copy()
    for name, given in conditions.items():
        labels[batch.labels[:, places[given]] != 1, places[name]] = np.nan
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


def _conditions(schema: Schema) -> dict[str, str]:
    """What each masked objective is given."""
    return {
        name: objective.given
        for name, objective in schema.objectives.items()
        if objective.given is not None and objective.conditional == "masked"
    }
