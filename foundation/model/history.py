"""Events of a log as tokens, and the events of several logs as one history."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.model.inputs import HistoryTensors
from foundation.model.layout import newest
from foundation.model.rotary import LogGapEncoding


@dataclass(frozen=True, slots=True)
class Events:
    """Tokens of a jagged history, oldest first within a request.

    Attributes:
        tokens: [T, D].
        offsets: [B + 1] int64.
        ages_days: [T].
    """

    tokens: Tensor
    offsets: Tensor
    ages_days: Tensor


class EventTokens(nn.Module):
    """One token an event, of one log: its ids and numbers, and how long before the request it was."""

    def __init__(self, schema: Schema, log: str, width: int) -> None:
        super().__init__()
        features = schema.event_features(log)
        self.keys = [f"history.{log}.{feature.name}" for feature in ids_of(features)]
        self.event = nn.Linear(len(self.keys) * width + len(numbers_of(features)), width)
        self.gap = LogGapEncoding(width)

    def forward(self, embedded: dict[str, Tensor], history: HistoryTensors) -> Events:
        """Embeddings by feature key, and the history they are of → its events."""
        parts = [*(embedded[key] for key in self.keys), history.numbers]
        tokens = self.event(torch.cat(parts, dim=1)) + self.gap(history.ages_days)
        return Events(tokens, history.offsets, history.ages_days)


def restricted(history: HistoryTensors, limit: int) -> HistoryTensors:
    """The newest `limit` events of each request."""
    places, offsets = newest(history.offsets, limit)
    return HistoryTensors(offsets, history.ids[places], history.numbers[places], history.ages_days[places])


def merged(parts: list[Events]) -> Events:
    """Several histories of the same requests as one, in order of time; of equal ages the first log's events first.

    Example:
        >>> one = Events(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 2]), torch.tensor([5.0, 1.0]))
        >>> two = Events(torch.tensor([[3.0]]), torch.tensor([0, 1]), torch.tensor([3.0]))
        >>> merged([one, two]).tokens.flatten().tolist()
        [1.0, 3.0, 2.0]
    """
    counts = [part.offsets.diff() for part in parts]
    requests = torch.arange(len(counts[0]), device=counts[0].device)
    owner = torch.cat([requests.repeat_interleave(count) for count in counts])
    ages = torch.cat([part.ages_days for part in parts])
    oldest_first = ages.argsort(descending=True, stable=True)
    order = oldest_first[owner[oldest_first].argsort(stable=True)]
    tokens = torch.cat([part.tokens for part in parts]).index_select(0, order)
    offsets = torch.stack([part.offsets for part in parts]).sum(0)
    return Events(tokens, offsets, ages[order])
