"""From scored batches to the table that evaluations read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eval.predictions import Predictions
from foundation.data.batch import RequestBatch
from foundation.data.schema import Schema
from foundation.training.labels import counted_labels


def predictions_of(
    batches: list[RequestBatch],
    probabilities: NDArray[np.float64],
    *,
    schema: Schema,
    objectives: tuple[str, ...],
    model_digest: str,
    data_fingerprint: str,
) -> Predictions:
    """Put batches and what a model said of their rows into one table.

    Args:
        batches: in the order they were scored.
        probabilities: [N, K] of all their candidates, K = len(objectives).
        schema: of the batches' labels and surfaces.
        objectives: columns of `probabilities`.
        model_digest: of the model that scored.
        data_fingerprint: of the store.
    """
    counts = np.concatenate([np.diff(batch.candidate_offsets) for batch in batches])
    labels = np.concatenate([counted_labels(batch, schema) for batch in batches]).astype(np.float64)
    places = {name: place for place, name in enumerate(schema.objectives)}

    def of_rows(values: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.repeat(np.concatenate(values), counts)

    return Predictions(
        row_id=np.concatenate([batch.row_ids for batch in batches]),
        request=of_rows([batch.positions for batch in batches]),
        user=of_rows([batch.users for batch in batches]),
        time=of_rows([batch.times for batch in batches]),
        surface=of_rows([batch.surfaces for batch in batches]).astype(np.int32),
        probabilities={name: probabilities[:, place] for place, name in enumerate(objectives)},
        labels={name: labels[:, places[name]] for name in objectives},
        surfaces=schema.surfaces,
        model_digest=model_digest,
        data_fingerprint=data_fingerprint,
    )
