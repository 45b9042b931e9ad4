"""Where heads start: at the log odds of the first rows, so that a rare objective need not first unlearn one half."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from foundation.data.batch import Int64Array
from foundation.data.reader import Reader
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.training.labels import settled_labels

PRIOR_REQUESTS = 1024


def first_log_odds(store: Store, schema: Schema, positions: Int64Array, until_us: int) -> Tensor:
    """Log odds of each objective's label among the first requests of a pass.

    Two made-up rows, one of each label, keep them finite. The scores of these very requests know their mean label, one
    number an objective, and nothing else of them.

    Args:
        store: an open store.
        schema: whose objectives are counted.
        positions: [N] int64, the requests of the pass.
        until_us: the training cut; labels that were not settled then do not count.

    Returns:
        [K] float32.
    """
    none = dict.fromkeys(schema.data.events, 0)
    with Reader(store, schema, positions[:PRIOR_REQUESTS], PRIOR_REQUESTS, history_limits=none, prefetch=0) as reader:
        labels = np.concatenate(
            [np.zeros((0, len(schema.objectives)), np.float32)]
            + [settled_labels(batch, schema, until_us) for batch in reader]
        )
    positives = 1 + (labels == 1).sum(axis=0)
    negatives = 1 + (labels == 0).sum(axis=0)
    return torch.from_numpy(np.log(positives / negatives).astype(np.float32))
