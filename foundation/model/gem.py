"""The foundation model: sequence learning and feature interaction, the user's side once a request.

history events → tokens → HSTU layers ─┬→ summary ┐
user, surface, context → tokens ───────┼──────────┴→ Wukong → request tokens  (once a request)
candidate → tokens → target attention ─┘                        │
history matches ──────────────────────────→ Wukong over request, candidate, attention and match tokens → trunk → heads
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from foundation.config import ModelConfig
from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.model.embedding import TokenEmbedding
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.hstu import HstuLayer
from foundation.model.inputs import HistoryTensors, RequestTensors
from foundation.model.layout import bucket_by_length, newest
from foundation.model.match import NUM_SIGNALS, match_signals
from foundation.model.target_attention import TargetAttention
from foundation.model.wukong import WukongLayer

NUM_AGE_BUCKETS = 40


def age_bucket(ages_days: Tensor) -> Tensor:
    """[T] int64: logarithm to base 2 of the age in minutes, one bucket a doubling, in [0, NUM_AGE_BUCKETS)."""
    return torch.log2(1 + ages_days.double() * 1440).long().clamp(0, NUM_AGE_BUCKETS - 1)


class HistoryEncoder(nn.Module):
    """Events of one log → encoded events, a summary, an answer to each candidate, and match signals."""

    def __init__(self, schema: Schema, log: str, config: ModelConfig) -> None:
        super().__init__()
        self.log = log
        self.limit = config.encoder_events
        features = schema.event_features(log)
        self.keys = [f"history.{log}.{feature.name}" for feature in ids_of(features)]
        self.num_fields = len(ids_of(schema.item_features()))
        width = config.width
        self.event = nn.Linear(len(self.keys) * width + len(numbers_of(features)), width)
        self.age = nn.Embedding(NUM_AGE_BUCKETS, width)
        self.layers = nn.ModuleList(
            HstuLayer(width, config.heads, config.encoder_events) for _ in range(config.encoder_layers)
        )
        self.attention = TargetAttention(width, config.heads, config.encoder_events)

    def restrict(self, history: HistoryTensors) -> HistoryTensors:
        """The newest events, those that the encoder reads."""
        places, offsets = newest(history.offsets, self.limit)
        return HistoryTensors(offsets, history.ids[places], history.numbers[places], history.ages_days[places])

    def encode(self, tokens: dict[str, Tensor], history: HistoryTensors) -> Tensor:
        """[T, D] encoded events of a restricted history."""
        parts = [tokens[key] for key in self.keys] + [history.numbers]
        events = self.event(torch.cat(parts, dim=1)) + self.age(age_bucket(history.ages_days))
        for layer in self.layers:
            events = layer(events, history.offsets)
        return events

    def summarise(self, events: Tensor, offsets: Tensor) -> Tensor:
        """[B, D]: the mean of the encoded events; zeros for an empty history."""
        counts = offsets.diff()
        total = events.new_zeros((len(counts), events.shape[1]))
        owner = torch.arange(len(counts), device=events.device).repeat_interleave(counts)
        return total.index_add(0, owner, events) / counts.clamp(min=1).unsqueeze(1)


class GemModel(nn.Module):
    """Logits of every candidate and objective.

    Source: the structure of GEM as published (sequence and non-sequence parts, all surfaces together); parts as in
    their files.
    """

    def __init__(self, schema: Schema, config: ModelConfig) -> None:
        super().__init__()
        width, logs = config.width, tuple(schema.data.events)
        self.embedding = TokenEmbedding(schema, logs, width)
        self.encoders = nn.ModuleDict({log: HistoryEncoder(schema, log, config) for log in logs})
        request, candidate = schema.request_features(), schema.candidate_features()
        self.request_keys = [f"request.{feature.name}" for feature in ids_of(request)]
        self.candidate_keys = [f"candidate.{feature.name}" for feature in ids_of(candidate)]
        self.num_item_fields = len(ids_of(schema.item_features()))
        num_request_numbers, num_candidate_numbers = len(numbers_of(request)), len(numbers_of(candidate))
        num_match = len(logs) * self.num_item_fields * NUM_SIGNALS
        self.request_numbers = nn.Linear(num_request_numbers, width) if num_request_numbers else None
        self.candidate_numbers = nn.Linear(num_candidate_numbers, width) if num_candidate_numbers else None
        self.query = nn.Linear(len(self.candidate_keys) * width, width)
        self.match = nn.Sequential(nn.Linear(num_match, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 2 * width))

        tokens_out = 2 * config.interaction_tokens
        num_request = len(self.request_keys) + len(logs) + (num_request_numbers > 0)
        self.request_interaction = _wukong(num_request, config, num_layers=1)
        num_candidate = tokens_out + len(self.candidate_keys) + len(logs) + 2 + (num_candidate_numbers > 0)
        self.interaction = _wukong(num_candidate, config, num_layers=config.interaction_layers)
        self.trunk = nn.Sequential(
            nn.Linear(tokens_out * width + num_match, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
        )
        self.heads = SurfaceObjectiveHeads(schema, config.hidden)

    def forward(self, batch: RequestTensors) -> Tensor:
        """[C, K] logits; NaN where the (surface, objective) pair does not exist."""
        owner = batch.request_of_candidate
        matches = [self._matches(batch, history) for history in batch.histories.values()]
        short = {log: self._encoder(log).restrict(history) for log, history in batch.histories.items()}
        tokens = self.embedding(replace(batch, histories=short))
        query = self.query(torch.cat([tokens[key] for key in self.candidate_keys], dim=1))

        request_tokens = [tokens[key] for key in self.request_keys]
        candidate_tokens = [tokens[key] for key in self.candidate_keys]
        for log, history in short.items():
            encoder = self._encoder(log)
            events = encoder.encode(tokens, history)
            request_tokens.append(encoder.summarise(events, history.offsets))
            candidate_tokens.append(encoder.attention(query, events, batch.candidate_offsets, history.offsets))
        if self.request_numbers is not None:
            request_tokens.append(self.request_numbers(batch.numbers))
        if self.candidate_numbers is not None:
            candidate_tokens.append(self.candidate_numbers(batch.candidate_numbers))

        signals = torch.cat(matches, dim=1)
        of_request = self.request_interaction(torch.stack(request_tokens, dim=1))
        of_candidate = torch.cat(
            [torch.stack(candidate_tokens, dim=1), self.match(signals).unflatten(1, (2, -1))], dim=1
        )
        interacted = self.interaction(torch.cat([of_request.index_select(0, owner), of_candidate], dim=1))
        trunk = self.trunk(torch.cat([interacted.flatten(1), signals], dim=1))
        return self.heads(functional.relu(trunk), batch.surfaces[owner])

    def _encoder(self, log: str) -> HistoryEncoder:
        encoder = self.encoders[log]
        assert isinstance(encoder, HistoryEncoder), "as the constructor made it"
        return encoder

    def _matches(self, batch: RequestTensors, history: HistoryTensors) -> Tensor:
        fields = self.num_item_fields
        buckets = bucket_by_length(history.offsets, batch.candidate_offsets)
        return match_signals(batch.candidate_ids[:, :fields], history.ids[:, :fields], history.ages_days, buckets)


def _wukong(num_tokens: int, config: ModelConfig, *, num_layers: int) -> nn.Sequential:
    layers, tokens = [], num_tokens
    for _ in range(num_layers):
        half = config.interaction_tokens
        layers.append(
            WukongLayer(
                tokens, config.width, num_fm=half, num_linear=half, rank=config.interaction_tokens, hidden=config.hidden
            )
        )
        tokens = 2 * half
    return nn.Sequential(*layers)
