"""History-match signals: how often and how lately this item, its type, its brand occur in the user's past.

Computed from ids alone, without parameters or gradients. They are the strongest simple signals of repeat behaviour.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foundation.model.layout import Bucket, gather_padded

DAY_US = 86_400_000_000
DECAYS_DAYS = (7.0, 28.0, 112.0)
NUM_SIGNALS = len(DECAYS_DAYS) + 2


def match_signals(candidate_ids: Tensor, event_ids: Tensor, ages_us: Tensor, buckets: tuple[Bucket, ...]) -> Tensor:
    """Signals of each candidate and field.

    Args:
        candidate_ids: [C, F] int64, table rows of the item features; row 0 (missing) matches nothing.
        event_ids: [T, F] int64, the same features of the events.
        ages_us: [T] int64, microseconds from the event to its request, at least 1.
        buckets: of the same batch.

    Returns:
        [C, F * NUM_SIGNALS] float32: for each field `log1p(count)`, `log1p` of the count decayed with time constants of
        7, 28 and 112 days, and `1 / (1 + days since the newest match)`; zeros where nothing matches.

    Source: ours; the counts that a ranking team would keep as as-of statistics, taken from the sequence itself.
    """
    days = ages_us.float() / DAY_US
    decays = torch.exp(-days[:, None] / days.new_tensor(DECAYS_DAYS))
    freshness = 1.0 / (1.0 + days)
    weights = torch.cat([torch.ones_like(days)[:, None], decays], dim=1)
    num_fields = candidate_ids.shape[1]
    signals = days.new_zeros((len(candidate_ids), num_fields, NUM_SIGNALS))
    for bucket in buckets:
        asked = bucket.candidates < len(candidate_ids)
        theirs = gather_padded(candidate_ids, bucket.candidates)
        events = gather_padded(event_ids, bucket.events)
        event_weights = gather_padded(weights, bucket.events)
        event_freshness = gather_padded(freshness, bucket.events)[:, None, :]
        for field in range(num_fields):
            asked_for = theirs[:, :, None, field]
            same = (asked_for == events[:, None, :, field]) & (asked_for > 0)
            counts = torch.log1p(same.float() @ event_weights)
            lately = torch.where(same, event_freshness, 0.0).amax(dim=2, keepdim=True)
            signals[bucket.candidates[asked], field] = torch.cat([counts, lately], dim=2)[asked]
    return signals.flatten(1)
