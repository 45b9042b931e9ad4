"""A ranker without history, for comparison: cross network beside an MLP, in the same frame as the others."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.config import ModelConfig
from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.model.cross import CrossNetwork
from foundation.model.embedding import LookedUp, TableModel, TokenEmbedding
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.inputs import RequestTensors
from foundation.model.split import SplitLinear


class Dcnv2Model(TableModel):
    """Logits of every candidate and objective from ids and numbers of the request and the candidate alone.

    The cross network and the MLP read the same inputs side by side, and the heads read both. Sizes: `cross_layers`
    of `cross_rank`, an MLP of `hidden` and `hidden / 2`; the sizes of sequences do not matter.

    Source: DCN-V2 (arXiv 2008.13535), parallel structure. Ours: the request's half of both first layers is computed
    once a request.
    """

    def __init__(self, schema: Schema, config: ModelConfig) -> None:
        super().__init__()
        request, candidate = schema.request_features(), schema.candidate_features()
        self.embedding = TokenEmbedding(schema, (), config.width)
        self.request_keys = [f"request.{feature.name}" for feature in ids_of(request)]
        self.candidate_keys = [f"candidate.{feature.name}" for feature in ids_of(candidate)]
        request_width = len(self.request_keys) * config.width + len(numbers_of(request))
        candidate_width = len(self.candidate_keys) * config.width + len(numbers_of(candidate))
        self.cross = CrossNetwork(
            request_width, candidate_width, num_layers=config.cross_layers, rank=config.cross_rank
        )
        self.first = SplitLinear(request_width, candidate_width, config.hidden)
        self.second = nn.Linear(config.hidden, config.hidden // 2)
        self.heads = SurfaceObjectiveHeads(schema, request_width + candidate_width + config.hidden // 2)

    def read(self, batch: RequestTensors) -> RequestTensors:
        """No history."""
        return replace(batch, histories={})

    def blocks(self) -> list[nn.Module]:
        """See `TableModel`."""
        return [self.cross, self.first, self.second]

    def forward(self, inputs: LookedUp) -> Tensor:
        """[C, K] logits; NaN where the (surface, objective) pair does not exist."""
        batch, tokens = inputs.batch, inputs.tokens
        owner = batch.request_of_candidate
        requests = torch.cat([*(tokens[key] for key in self.request_keys), batch.numbers], dim=1)
        candidates = torch.cat([*(tokens[key] for key in self.candidate_keys), batch.candidate_numbers], dim=1)
        crossed = self.cross(requests, candidates, owner)
        hidden = functional.relu(self.second(functional.relu(self.first(requests, candidates, owner))))
        return self.heads(torch.cat([crossed, hidden], dim=1), batch.surfaces[owner])
