"""The student as it is served: one request, plain tensors, one table; what `torch.export` turns into ONNX.

Shape letters: N candidates, T events, F id features, G number features, K objectives.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from foundation.data.schema import Schema, ids_of
from foundation.model.match import DECAYS_DAYS
from serving.ids import OUT_OF_VOCABULARY
from transfer.student import StudentNetwork, StudentShape


class FeatureRows(nn.Module):
    """Rows of several features in one concatenated table, of ids that `known` has mapped into their feature's own."""

    offsets: Tensor
    sizes: Tensor

    def __init__(self, offsets: list[int], sizes: list[int]) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor(offsets, dtype=torch.int64))
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.int64))

    def known(self, ids: Tensor) -> Tensor:
        """[M, F] int64 → the same, an id outside its feature's own table made "out of vocabulary"."""
        return torch.where((ids < 0) | (ids >= self.sizes), OUT_OF_VOCABULARY, ids)

    def forward(self, known: Tensor, table: Tensor) -> Tensor:
        """[M, F] int64 → [M, F * D]."""
        return torch.nn.functional.embedding(known + self.offsets, table).flatten(1)


class ServedStudent(nn.Module):
    """`Student` for one request, from ids to probabilities; nothing of the auxiliary head or of TorchRec is in it.

    `corrections` are added to the log odds of the output, composed or not: the probability is that among all rows, also
    where the log kept only some of those with label 0.
    """

    table: Tensor
    decays: Tensor
    corrections: Tensor

    def __init__(
        self,
        schema: Schema,
        shape: StudentShape,
        network: StudentNetwork,
        tables: dict[str, Tensor],
        *,
        corrections: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.corrected = any(corrections)
        self.register_buffer("corrections", torch.tensor(corrections))
        self.logs = tuple(shape.events)
        self.num_item_fields = shape.num_item_fields
        self.network = network
        starts, start = {}, 0
        for name, weight in tables.items():
            starts[name] = start
            start += len(weight)
        self.register_buffer("table", torch.cat(list(tables.values())))
        self.register_buffer("decays", torch.tensor(DECAYS_DAYS))

        def rows(names: list[str]) -> FeatureRows:
            return FeatureRows([starts[name] for name in names], [len(tables[name]) for name in names])

        self.request_rows = rows([f.table_name for f in ids_of(schema.request_features())])
        self.candidate_rows = rows([f.table_name for f in ids_of(schema.candidate_features())])
        self.event_rows = nn.ModuleDict(
            {log: rows([f.table_name for f in ids_of(schema.event_features(log))]) for log in shape.events}
        )

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Graph inputs by name (see `serving.manifest.Manifest`) → [N, K] probabilities."""
        request_ids = self.request_rows.known(inputs["request_ids"])
        candidate_ids = self.candidate_rows.known(inputs["candidate_ids"])
        user = [self.request_rows(request_ids, self.table)]
        candidate = [self.candidate_rows(candidate_ids, self.table)]
        if "candidate_numbers" in inputs:
            candidate.append(inputs["candidate_numbers"])
        for log in self.logs:
            rows, days = cast(FeatureRows, self.event_rows[log]), inputs[f"history_ages.{log}"]
            event_ids = rows.known(inputs[f"history_ids.{log}"])
            events = rows(event_ids, self.table)
            if f"history_numbers.{log}" in inputs:
                events = torch.cat([events, inputs[f"history_numbers.{log}"]], dim=1)
            count = torch.ones_like(days).sum().clamp(min=1.0)
            user.append(events.sum(0, keepdim=True) / count)
            candidate.append(self._matches(candidate_ids, event_ids, days))
        if "request_numbers" in inputs:
            user.append(inputs["request_numbers"])
        x = self.network.user_half(torch.cat(user, dim=1))
        features = self.network.backbone(x, torch.cat(candidate, dim=1))
        logits = self.network.logits(features)
        return torch.sigmoid(logits + self.corrections if self.corrected else logits)

    def _matches(self, candidate_ids: Tensor, event_ids: Tensor, days: Tensor) -> Tensor:
        """`foundation.model.match.match_signals` of one request: [N, F * NUM_SIGNALS]."""
        weights = torch.cat([torch.ones_like(days)[:, None], torch.exp(-days[:, None] / self.decays)], dim=1)
        freshness = 1.0 / (1.0 + days)
        signals = []
        for field in range(self.num_item_fields):
            asked = candidate_ids[:, None, field]
            same = ((asked == event_ids[None, :, field]) & (asked > 0)).float()
            lately = torch.nn.functional.pad(same * freshness, (1, 0)).amax(dim=1, keepdim=True)
            signals += [torch.log1p(same @ weights), lately]
        return torch.cat(signals, dim=1)
