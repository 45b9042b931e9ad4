"""A batch of requests as tensors, and the ids of a batch as TorchRec's KeyedJaggedTensor."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchrec import KeyedJaggedTensor

from foundation.data.batch import RequestBatch
from foundation.data.schema import Schema, ids_of
from foundation.model.layout import bucket_by_length
from foundation.model.match import match_signals
from serving.ages import age_days


@dataclass(frozen=True, slots=True)
class HistoryTensors:
    """`foundation.data.batch.History` as tensors, with ages in place of times.

    Attributes:
        offsets: [B + 1] int64.
        ids: [T, F] int64.
        numbers: [T, G] float32.
        ages_days: [T] float32, days from the event to its request, above 0.
    """

    offsets: Tensor
    ids: Tensor
    numbers: Tensor
    ages_days: Tensor


@dataclass(frozen=True, slots=True)
class RequestTensors:
    """`foundation.data.batch.RequestBatch` as tensors; the same names and shapes."""

    surfaces: Tensor
    ids: Tensor
    numbers: Tensor
    candidate_offsets: Tensor
    candidate_ids: Tensor
    candidate_numbers: Tensor
    labels: Tensor
    histories: dict[str, HistoryTensors]
    _matches: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def request_of_candidate(self) -> Tensor:
        """[C] int64, the request each candidate belongs to."""
        counts = self.candidate_offsets.diff()
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def matches(self, num_fields: int) -> Tensor:
        """Match signals of candidates with each whole history, by the first `num_fields` id features: the item's own.

        They are made once, however often the batch goes through a model: it is scored, and then learned from.

        Returns:
            [C, logs * num_fields * `foundation.model.match.NUM_SIGNALS`] float32; [C, 0] where there is no log.
        """
        if num_fields not in self._matches:
            signals = [
                match_signals(
                    self.candidate_ids[:, :num_fields],
                    history.ids[:, :num_fields],
                    history.ages_days,
                    bucket_by_length(history.offsets, self.candidate_offsets),
                )
                for history in self.histories.values()
            ]
            none = self.candidate_numbers[:, :0]
            self._matches[num_fields] = torch.cat([none, *signals], dim=1).detach()
        return self._matches[num_fields]


def to_tensors(batch: RequestBatch, device: torch.device) -> RequestTensors:
    """Move a batch to a device; on a CPU the tensors share the batch's memory."""

    def move(array: object) -> Tensor:
        return torch.as_tensor(array).to(device, non_blocking=True)

    histories = {}
    for log, history in batch.histories.items():
        now = batch.times.repeat(history.offsets[1:] - history.offsets[:-1])
        histories[log] = HistoryTensors(
            offsets=move(history.offsets),
            ids=move(history.ids),
            numbers=move(history.numbers),
            ages_days=move(age_days(now, history.times)),
        )
    return RequestTensors(
        surfaces=move(batch.surfaces),
        ids=move(batch.ids),
        numbers=move(batch.numbers),
        candidate_offsets=move(batch.candidate_offsets),
        candidate_ids=move(batch.candidate_ids),
        candidate_numbers=move(batch.candidate_numbers),
        labels=move(batch.labels),
        histories=histories,
    )


def feature_keys(schema: Schema, logs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """(key, table) of every id feature, in the order `keyed_ids` lays them out."""
    keys = [(f"request.{f.name}", f.table_name) for f in ids_of(schema.request_features())]
    keys += [(f"candidate.{f.name}", f.table_name) for f in ids_of(schema.candidate_features())]
    for log in logs:
        keys += [(f"history.{log}.{f.name}", f.table_name) for f in ids_of(schema.event_features(log))]
    return tuple(keys)


def keyed_ids(batch: RequestTensors, keys: tuple[tuple[str, str], ...]) -> KeyedJaggedTensor:
    """Every id of a batch, feature by feature, with one length for each request.

    A batch without a request counts as one request without ids, because TorchRec knows no batch of 0.
    """
    groups = [(batch.ids, torch.ones_like(batch.surfaces)), (batch.candidate_ids, batch.candidate_offsets.diff())]
    groups += [(history.ids, history.offsets.diff()) for history in batch.histories.values()]
    lengths = torch.cat([lengths.repeat(ids.shape[1]) for ids, lengths in groups])
    return KeyedJaggedTensor(
        keys=[key for key, _ in keys],
        values=torch.cat([ids.t().reshape(-1) for ids, _ in groups]),
        lengths=lengths if len(batch.surfaces) else lengths.new_zeros(len(keys)),
    )
