"""Where a model starts: heads at the log odds of the first rows, bins of numbers at the quantiles of a sample."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from foundation.data.batch import Int64Array
from foundation.data.reader import Reader
from foundation.data.schema import Schema, numbers_of
from foundation.data.store import Store
from foundation.model.conditional import products_of
from foundation.model.numbers import quantile_edges
from foundation.training.labels import settled_labels

PRIOR_REQUESTS = 1024
SAMPLE_REQUESTS = 4096


def first_log_odds(
    store: Store, schema: Schema, positions: Int64Array, until_us: int, *, objectives: tuple[str, ...] | None = None
) -> Tensor:
    """Log odds of each objective's label among the first requests of a pass; of a product, where the other came true.

    Two made-up rows, one of each label, keep them finite. The scores of these very requests know their mean label, one
    number an objective, and nothing else of them.

    Args:
        store: an open store.
        schema: whose objectives are counted.
        positions: [N] int64, the requests of the pass.
        until_us: the training cut; labels that were not settled then do not count.
        objectives: those that a model has, of which a product may be made; all of the schema's if absent.

    Returns:
        [K] float32.
    """
    none = dict.fromkeys(schema.data.events, 0)
    with Reader(store, schema, positions[:PRIOR_REQUESTS], PRIOR_REQUESTS, history_limits=none, prefetch=0) as reader:
        labels = np.concatenate(
            [np.zeros((0, len(schema.objectives)), np.float32)]
            + [settled_labels(batch, schema, until_us) for batch in reader]
        )
    names = tuple(schema.objectives)
    for place, given in products_of(schema, names):
        if objectives is None or {names[place], names[given]} <= set(objectives):
            labels[labels[:, given] != 1, place] = np.nan
    positives = 1 + (labels == 1).sum(axis=0)
    negatives = 1 + (labels == 0).sum(axis=0)
    return torch.from_numpy(np.log(positives / negatives).astype(np.float32))


def number_edges(store: Store, schema: Schema, positions: Int64Array) -> tuple[Tensor, Tensor]:
    """Edges of bins of numbers, by the quantiles of requests spread evenly over a pass.

    No label is looked at. Early scores know what range the features of later rows have, and nothing else of them.

    Returns:
        What `quantile_edges` says of the requests' numbers and of their candidates'; of zeros if there is no request.
    """
    spread = positions[:: max(1, len(positions) // SAMPLE_REQUESTS)]
    none = dict.fromkeys(schema.data.events, 0)
    with Reader(store, schema, spread, len(spread) + 1, history_limits=none, prefetch=0) as reader:
        batch = next(iter(reader), None)
    if batch is None:
        groups = (schema.request_features(), schema.candidate_features())
        request, candidate = (np.zeros((1, len(numbers_of(features))), np.float32) for features in groups)
    else:
        request, candidate = batch.numbers, batch.candidate_numbers
    return quantile_edges(request), quantile_edges(candidate)
