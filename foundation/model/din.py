"""Deep interest network: each candidate weighs the newest events of the history, and an MLP reads their sum."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.config import ModelConfig
from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.model.embedding import LookedUp, TableModel, TokenEmbedding
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.history import restricted
from foundation.model.inputs import HistoryTensors, RequestTensors
from foundation.model.layout import Bucket, bucket_by_length, gather_buckets, scatter_back
from foundation.model.split import SplitLinear


class MlpUnit(nn.Module):
    """Weight of an event for a candidate: `w · relu(W [q ; k ; q - k ; q * k] + b)`, not normalised over events.

    q - k adds nothing to what a linear layer makes of q and k, and `W_k k + W_p (q * k) = (W_k + W_p diag(q)) k`: one
    matrix product a request over its events, with no [candidates, events, D] tensor.

    Source: DIN (arXiv 1706.06978, section 4.3, figure 2), ReLU in place of PReLU.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.of_query = nn.Linear(width, hidden)
        self.of_key = nn.Linear(width, hidden, bias=False)
        self.of_product = nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """[b, M, D] candidates and [b, L, D] events → [b, M, L]."""
        asked = torch.addcmul(self.of_key.weight, q.unsqueeze(2), self.of_product.weight).flatten(1, 2)
        sums = torch.baddbmm(self.of_query(q).flatten(1).unsqueeze(2), asked, k.transpose(1, 2))
        hidden = functional.relu(sums, inplace=True).unflatten(1, (q.shape[1], -1))
        return (self.out.weight @ hidden).squeeze(2) + self.out.bias


class HistoryInterest(nn.Module):
    """One log as each candidate sees it: the weighted sum of its newest events.

    A candidate and an event are compared on their item features, which are in the same tables, in one projection to
    `2 * width` (ours: a comparison then costs the same however many features). The sum is over all that is known of the
    event: these features, its own, its numbers and the logarithm of its age.
    """

    def __init__(self, schema: Schema, log: str, config: ModelConfig) -> None:
        super().__init__()
        features = schema.event_features(log)
        self.keys = [f"history.{log}.{feature.name}" for feature in ids_of(features)]
        self.num_item_keys = len(ids_of(schema.item_features()))
        self.item_width = self.num_item_keys * config.width
        self.width = len(self.keys) * config.width + len(numbers_of(features)) + 1
        self.compared = nn.Linear(self.item_width, 2 * config.width, bias=False)
        self.unit = MlpUnit(2 * config.width, max(1, config.hidden // 8))

    def forward(
        self, candidates: Tensor, tokens: dict[str, Tensor], history: HistoryTensors, buckets: tuple[Bucket, ...]
    ) -> Tensor:
        """[C, item features * D] candidates and a restricted history → [C, width]; zeros for an empty history."""
        ages = torch.log1p(history.ages_days).unsqueeze(1)
        items = torch.cat([tokens[key] for key in self.keys[: self.num_item_keys]], dim=1)
        own = [tokens[key] for key in self.keys[self.num_item_keys :]] + [history.numbers, ages]
        places, asking = [bucket.events for bucket in buckets], [bucket.candidates for bucket in buckets]
        weights = [
            self.unit(q, k)
            for q, k in zip(
                gather_buckets(self.compared(candidates), asking),
                gather_buckets(self.compared(items), places),
                strict=True,
            )
        ]
        values = gather_buckets(torch.cat([items, *own], dim=1), places)  # 0 where padded, whatever its weight
        return scatter_back([w @ v for w, v in zip(weights, values, strict=True)], asking, len(candidates))


class DinModel(TableModel):
    """Logits of every candidate and objective: request, candidate and its interest in each log, an MLP, the heads.

    Sizes: `encoder_events` newest events, a unit of `hidden / 8`, an MLP of `hidden` and `hidden / 2`.

    Source: DIN (arXiv 1706.06978). Ours: a history is read once for all candidates of its request, without padding to
    the longest, and the request's half of the first layer is computed once.
    """

    def __init__(self, schema: Schema, config: ModelConfig) -> None:
        super().__init__()
        logs = tuple(schema.data.events)
        request, candidate = schema.request_features(), schema.candidate_features()
        self.events = config.encoder_events
        self.embedding = TokenEmbedding(schema, logs, config.width)
        self.interests = nn.ModuleDict({log: HistoryInterest(schema, log, config) for log in logs})
        self.request_keys = [f"request.{feature.name}" for feature in ids_of(request)]
        self.candidate_keys = [f"candidate.{feature.name}" for feature in ids_of(candidate)]
        self.item_keys = self.candidate_keys[: len(ids_of(schema.item_features()))]
        request_width = len(self.request_keys) * config.width + len(numbers_of(request))
        candidate_width = len(self.candidate_keys) * config.width + len(numbers_of(candidate))
        candidate_width += sum(self._interest(log).width for log in logs)
        self.first = SplitLinear(request_width, candidate_width, config.hidden)
        self.second = nn.Linear(config.hidden, config.hidden // 2)
        self.heads = SurfaceObjectiveHeads(schema, config.hidden // 2)

    def read(self, batch: RequestTensors) -> RequestTensors:
        """The newest events of each history."""
        return replace(
            batch, histories={log: restricted(history, self.events) for log, history in batch.histories.items()}
        )

    def blocks(self) -> list[nn.Module]:
        """See `TableModel`."""
        return [*self.interests.values(), self.first, self.second]

    def forward(self, inputs: LookedUp) -> Tensor:
        """[C, K] logits; NaN where the (surface, objective) pair does not exist."""
        batch, tokens = inputs.batch, inputs.tokens
        owner = batch.request_of_candidate
        items = torch.cat([tokens[key] for key in self.item_keys], dim=1)
        parts = [tokens[key] for key in self.candidate_keys] + [batch.candidate_numbers]
        for log, history in inputs.read.histories.items():
            buckets = bucket_by_length(history.offsets, batch.candidate_offsets)
            parts.append(self._interest(log)(items, tokens, history, buckets))
        requests = torch.cat([*(tokens[key] for key in self.request_keys), batch.numbers], dim=1)
        hidden = functional.relu(self.first(requests, torch.cat(parts, dim=1), owner))
        return self.heads(functional.relu(self.second(hidden)), batch.surfaces[owner])

    def _interest(self, log: str) -> HistoryInterest:
        interest = self.interests[log]
        assert isinstance(interest, HistoryInterest), "as the constructor made it"
        return interest
