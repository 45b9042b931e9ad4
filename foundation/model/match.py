"""History-match signals: how often and how lately this item, its type, its brand occur in the user's past.

Computed from ids alone, without parameters or gradients. They are the strongest simple signals of repeat behaviour.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foundation.model.layout import Bucket, gather_buckets, scatter_back

DECAYS_DAYS = (7.0, 28.0, 112.0)
NUM_SIGNALS = len(DECAYS_DAYS) + 2
NO_ID = -1


def match_signals(candidate_ids: Tensor, event_ids: Tensor, ages_days: Tensor, buckets: tuple[Bucket, ...]) -> Tensor:
    """Signals of each candidate and field.

    Args:
        candidate_ids: [C, F] int64, table rows of the item features; row 0 (missing) matches nothing.
        event_ids: [T, F] int64, the same features of the events.
        ages_days: [T] float32, days from the event to its request, above 0.
        buckets: of the same batch.

    Returns:
        [C, F * NUM_SIGNALS] float32: for each field `log1p(count)`, `log1p` of the count decayed with time constants of
        7, 28 and 112 days, and `1 / (1 + days since the newest match)`; zeros where nothing matches.

    Source: ours; the counts that a ranking team would keep as as-of statistics, taken from the sequence itself.
    """
    decays = torch.exp(-ages_days[:, None] / ages_days.new_tensor(DECAYS_DAYS))
    weights = torch.cat([torch.ones_like(ages_days)[:, None], decays], dim=1)
    asked_ids, seen_ids = _as_floats(torch.where(candidate_ids > 0, candidate_ids, NO_ID), event_ids)
    events, candidates = [bucket.events for bucket in buckets], [bucket.candidates for bucket in buckets]
    parts = zip(
        gather_buckets(asked_ids, candidates),
        gather_buckets(seen_ids, events),
        gather_buckets(weights, events),
        gather_buckets(1.0 / (1.0 + ages_days), events),
        strict=True,
    )
    signals = [_signals(asked.transpose(1, 2), seen.transpose(1, 2), *others) for asked, seen, *others in parts]
    return scatter_back(signals, candidates, len(candidate_ids))


def _as_floats(candidate_ids: Tensor, event_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Both exactly, in the narrowest float type.

    On a CPU floats compared into floats take an eighth of the time of integers compared into booleans and then cast.
    """
    largest = max((int(ids.max()) for ids in (candidate_ids, event_ids) if ids.numel()), default=0)
    dtype = torch.float32 if largest < 2**24 else torch.float64
    return candidate_ids.to(dtype), event_ids.to(dtype)


def _signals(asked: Tensor, seen: Tensor, weights: Tensor, freshness: Tensor) -> Tensor:
    """[b, F, M] and [b, F, L] ids, [b, L, W] weights and [b, L] freshness of events → [b, M, F * NUM_SIGNALS]."""
    asked, seen = asked.contiguous()[..., None], seen.contiguous()[:, :, None, :]
    same = asked.new_empty((*asked.shape[:3], seen.shape[3]))
    same = torch.eq(asked, seen, out=same).to(weights.dtype)
    counts = torch.log1p(same.flatten(1, 2) @ weights).unflatten(1, same.shape[1:3])
    lately = (same * freshness[:, None, None, :]).amax(dim=3, keepdim=True)
    return torch.cat([counts, lately], dim=3).transpose(1, 2).flatten(2)
