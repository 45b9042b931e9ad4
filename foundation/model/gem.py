"""The foundation model: sequence learning and feature interaction in turns, the user's side once a request.

once a request:
    user, surface, context, numbers → request tokens ⇄ InterFormer rounds, if any ⇄ newest events of the histories

once a candidate:
    ids, numbers, history matches, attention on the events → candidate tokens
    [request tokens ; candidate tokens] → Wukong ─────┐
    ids and numbers of both, answers, matches ────────┴→ trunk of cross and hidden layers, surface gates → heads
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from foundation.config import ModelConfig
from foundation.data.schema import SURFACE, Schema, ids_of, numbers_of
from foundation.kernels.activation import Pointwise
from foundation.model.cross import CrossNetwork
from foundation.model.embedding import LookedUp, TableModel, TokenEmbedding
from foundation.model.gates import SurfaceExperts, SurfaceGate
from foundation.model.gdpa import pointwise
from foundation.model.heads import SurfaceObjectiveHeads
from foundation.model.history import Events, EventTokens, merged, restricted
from foundation.model.hstu import HstuLayer
from foundation.model.inputs import HistoryTensors, RequestTensors
from foundation.model.interformer import (
    InterFormerLayer,
    PersonalAttention,
    PersonalMatrix,
    PersonalVector,
    TokenSummary,
    prepend,
)
from foundation.model.match import NUM_SIGNALS
from foundation.model.numbers import NumberEncoding, NumberGroup
from foundation.model.pooling import HierarchicalSeedPooling, SeedPooling
from foundation.model.rotary import Rotary
from foundation.model.target_attention import TargetAttention
from foundation.model.wukong import WukongLayer

NUM_SEEDS, NUM_RECENT = 2, 2
SEEDS_OF_HIERARCHY = 8
NUM_SUMMARY = 4
NUMBER_TOKENS = 4
MATCH_TOKENS = 2
GATE_HIDDEN = 32


class GemModel(TableModel):
    """Logits of every candidate and objective.

    Source: the structure of GEM as published (sequence and non-sequence parts in turns, all surfaces together); parts
    as in their files.
    """

    def __init__(self, schema: Schema, config: ModelConfig) -> None:
        super().__init__()
        self.logs = tuple(schema.data.events) if config.sequence else ()
        self.encoder_events = config.encoder_events
        self.embedding = TokenEmbedding(schema, self.logs, config.width)
        self.request = RequestSide(schema, config)
        self.candidate = CandidateSide(schema, config, self.request)
        self.heads = SurfaceObjectiveHeads(schema, config.hidden)

    def read(self, batch: RequestTensors) -> RequestTensors:
        """The newest events of each history; the match signals read older ones too, but look nothing up."""
        return replace(
            batch, histories={log: restricted(batch.histories[log], self.encoder_events) for log in self.logs}
        )

    def forward(self, inputs: LookedUp) -> Tensor:
        """[C, K] logits; NaN where the (surface, objective) pair does not exist."""
        batch, tokens = inputs.batch, inputs.tokens
        hidden = self.candidate(tokens, batch, self.request(tokens, batch, inputs.read.histories))
        return self.heads(hidden, batch.surfaces[batch.request_of_candidate])

    def blocks(self) -> list[nn.Module]:
        """See `TableModel`."""
        request, candidate = self.request, self.candidate
        alone = [request.alone] if request.alone is not None else []
        match = [candidate.match] if candidate.match is not None else []
        return [*request.rounds, *alone, *match, *candidate.interaction, candidate.trunk]


@dataclass(frozen=True, slots=True)
class OfRequests:
    """What candidates are told of their requests.

    Attributes:
        tokens: [B, n, D], after the rounds.
        inputs: [B, I] ids and numbers as they came.
        histories: as the rounds left them: one a log, or one of all.
    """

    tokens: Tensor
    inputs: Tensor
    histories: list[Events]


class RequestSide(nn.Module):
    """What depends on the user, the context and the past alone: request tokens and events, changed by each other."""

    def __init__(self, schema: Schema, config: ModelConfig) -> None:
        super().__init__()
        features, width = schema.request_features(), config.width
        self.keys = [f"request.{feature.name}" for feature in ids_of(features)]
        self.numbers = NumberTokens(len(numbers_of(features)), config.width, "request")
        logs = tuple(schema.data.events) if config.sequence else ()
        self.events = nn.ModuleDict({log: EventTokens(schema, log, width) for log in logs})
        self.merge = config.histories == "merged"
        self.num_histories = min(1, len(logs)) if self.merge else len(logs)
        self.cls = nn.Parameter(torch.randn(config.cls_tokens, width) * 0.05) if config.cls_tokens else None
        self.inputs_width = len(self.keys) * width + self.numbers.width
        self.keep = not config.checkpoint_activations

        rounds, tokens = [], len(self.keys) + self.numbers.num_tokens
        for place in range(config.interleaved_layers):
            for _ in range(self.num_histories):
                rounds.append(_round(tokens, config, skips=config.compute_skip and place % 2 == 1))
                tokens = 2 * config.interaction_tokens
        self.rounds = nn.ModuleList(rounds)
        self.alone = _wukong(tokens, config) if not rounds else None

    def forward(
        self, embedded: dict[str, Tensor], batch: RequestTensors, read: dict[str, HistoryTensors]
    ) -> OfRequests:
        """Embeddings by feature key, the batch, and the newest events of its histories."""
        ids = torch.stack([embedded[key] for key in self.keys], dim=1)
        numbers = self.numbers.encode(batch.numbers)
        x = torch.cat([ids, self.numbers.tokens_of(numbers)], dim=1)
        histories: list[Events] = [self.events[log](embedded, read[log]) for log in read]
        if self.merge and histories:
            histories = [merged(histories)]
        if self.cls is not None:
            histories = [prepend(self.cls.expand(len(x), -1, -1), events) for events in histories]
        seen: list[Tensor | None] = [None] * len(histories)
        for place, layer in enumerate(self.rounds):
            at = place % len(histories)
            events = histories[at]
            x, tokens, seen[at] = run(
                layer, x, events.tokens, events.offsets, seen[at], events.ages_days, keep=self.keep
            )
            histories[at] = replace(events, tokens=tokens)
        tokens = x if self.alone is None else self.alone(x)
        return OfRequests(tokens, torch.cat([ids.flatten(1), numbers], dim=1), histories)


class CandidateSide(nn.Module):
    """What depends on a candidate: its tokens meet the request's, then cross layers and the gated trunk."""

    def __init__(self, schema: Schema, config: ModelConfig, request: RequestSide) -> None:
        super().__init__()
        num_histories = request.num_histories
        features, width, hidden = schema.candidate_features(), config.width, config.hidden
        self.keys = [f"candidate.{feature.name}" for feature in ids_of(features)]
        self.num_fields = len(ids_of(schema.item_features()))
        self.numbers = NumberTokens(len(numbers_of(features)), width, "candidate")
        self.query = nn.Linear(len(self.keys) * width, width)
        self.attention = nn.ModuleList(
            TargetAttention(width, config.heads, _form(config, config.encoder_events)) for _ in range(num_histories)
        )
        num_signals = len(schema.data.events) * self.num_fields * NUM_SIGNALS if config.match else 0
        self.match = (
            nn.Sequential(nn.Linear(num_signals, hidden), nn.ReLU(), nn.Linear(hidden, MATCH_TOKENS * width))
            if config.match
            else None
        )
        request_tokens = 2 * config.interaction_tokens
        tokens = request_tokens + len(self.keys) + num_histories + self.numbers.num_tokens
        tokens += MATCH_TOKENS if config.match else 0
        beside = num_signals + self.numbers.width
        layers = [
            _wukong(tokens if place == 0 else request_tokens, config) for place in range(config.interaction_layers)
        ]
        self.interaction = nn.Sequential(*layers)
        self.trunk = Trunk(
            request_tokens * width + beside,
            (request.inputs_width, (len(self.keys) + num_histories) * width + beside),
            config,
            num_surfaces=len(schema.surfaces),
        )
        self.keep = not config.checkpoint_activations

    def forward(self, embedded: dict[str, Tensor], batch: RequestTensors, request: OfRequests) -> Tensor:
        """[C, hidden]."""
        owner = batch.request_of_candidate
        ids = [embedded[key] for key in self.keys]
        query = self.query(torch.cat(ids, dim=1))
        answers = [
            attention(query, events.tokens, batch.candidate_offsets, events.offsets)
            for attention, events in zip(self.attention, request.histories, strict=True)
        ]
        numbers = self.numbers.encode(batch.candidate_numbers)
        own = torch.stack([*ids, *answers], dim=1)
        tokens, beside = [own, self.numbers.tokens_of(numbers)], [numbers]
        if self.match is not None:
            signals = batch.matches(self.num_fields)  # with whole histories, longer than what is read
            tokens.append(self.match(signals).unflatten(1, (MATCH_TOKENS, -1)))
            beside.append(signals)
        x = torch.cat([request.tokens.index_select(0, owner), *tokens], dim=1)
        interacted = run(self.interaction, x, keep=self.keep)
        surface = embedded[f"request.{SURFACE}"].index_select(0, owner)
        return self.trunk(
            torch.cat([interacted.flatten(1), *beside], dim=1),
            request.inputs,
            torch.cat([own.flatten(1), *beside], dim=1),
            surface,
            batch,
        )


class Trunk(nn.Module):
    """Two hidden layers over what the interaction made of the inputs, and cross layers over the inputs themselves.

    Surfaces share it; each has its gates.
    """

    def __init__(self, width: int, inputs: tuple[int, int], config: ModelConfig, *, num_surfaces: int) -> None:
        super().__init__()
        hidden, experts = config.hidden, config.experts
        self.first = (
            SurfaceExperts(width, hidden, num_experts=experts, num_surfaces=num_surfaces)
            if experts
            else nn.Linear(width, hidden)
        )
        self.second = nn.Linear(hidden, hidden)
        self.cross = CrossNetwork(*inputs, num_layers=config.cross_layers, rank=config.cross_rank)
        self.crossed = nn.Linear(sum(inputs), hidden) if config.cross_layers else None
        self.gates = nn.ModuleList(
            SurfaceGate(config.width, hidden, hidden=GATE_HIDDEN) for _ in range(2 if config.gates else 0)
        )

    def forward(
        self, interacted: Tensor, requests: Tensor, candidates: Tensor, surface: Tensor, batch: RequestTensors
    ) -> Tensor:
        """[C, width], inputs [B, D_r] and [C, D_c], the surface's token [C, D] → [C, hidden], at least 0."""
        owner = batch.request_of_candidate
        by_surface = isinstance(self.first, SurfaceExperts)
        x = self.first(interacted, batch.surfaces[owner]) if by_surface else self.first(interacted)
        x = self._gated(0, functional.relu(x), surface)
        x = self.second(x)
        if self.crossed is not None:
            x = x + self.crossed(self.cross(requests, candidates, owner))
        return self._gated(1, functional.relu(x), surface)

    def _gated(self, place: int, x: Tensor, surface: Tensor) -> Tensor:
        return self.gates[place](x, surface) if self.gates else x


class NumberTokens(nn.Module):
    """Numbers for the trunk as they are and encoded, and as a few tokens; nothing of either where there are none."""

    def __init__(self, num_features: int, width: int, group: NumberGroup) -> None:
        super().__init__()
        self.num_tokens = NUMBER_TOKENS if num_features else 0
        self.encoding = NumberEncoding(num_features, group)
        self.width = self.encoding.width + num_features
        self.to_tokens = nn.Linear(self.width, self.num_tokens * width) if num_features else None
        self.token_width = width

    def encode(self, numbers: Tensor) -> Tensor:
        """[N, F] → [N, `width`]."""
        return torch.cat([self.encoding(numbers), numbers], dim=1) if self.num_tokens else numbers

    def tokens_of(self, encoded: Tensor) -> Tensor:
        """[N, `width`] of `encode` → [N, `num_tokens`, D]."""
        if self.to_tokens is None:
            return encoded.new_zeros((len(encoded), 0, self.token_width))
        return self.to_tokens(encoded).unflatten(1, (self.num_tokens, -1))


def run(layer: nn.Module, *inputs: Tensor | None, keep: bool) -> Any:
    """What the layer gives; its activations are kept for the backward pass, or made again there."""
    return layer(*inputs) if keep else checkpoint(layer, *inputs, use_reentrant=False)


def _round(num_tokens: int, config: ModelConfig, *, skips: bool) -> InterFormerLayer:
    """One InterFormer round; one that `skips` takes the summary of the round before, and personalises nothing."""
    width, personal = config.width, config.interleaving and not skips
    rotary = None if config.rotary == "none" else Rotary(width // config.heads, on=config.rotary)
    form = _form(config, config.encoder_events, window=config.window)
    return InterFormerLayer(
        width,
        interaction=_wukong(num_tokens + config.cls_tokens + NUM_SEEDS + NUM_RECENT, config),
        attention=HstuLayer(width, config.heads, form, rotary=rotary),
        summary=TokenSummary(num_tokens, width, num_summary=NUM_SUMMARY) if personal else None,
        personal=_personal(config) if personal else None,
        pooling=None if skips else _pooling(config),
        num_cls=config.cls_tokens,
        num_recent=NUM_RECENT,
    )


def _personal(config: ModelConfig) -> PersonalAttention | PersonalVector | PersonalMatrix:
    match config.personalisation:
        case "attention":
            return PersonalAttention(config.width, config.heads, _form(config, NUM_SUMMARY))
        case "vector":
            return PersonalVector(config.width, num_summary=NUM_SUMMARY, hidden=config.hidden)
        case "matrix":
            return PersonalMatrix(config.width, num_summary=NUM_SUMMARY, hidden=config.hidden)


def _pooling(config: ModelConfig) -> SeedPooling | HierarchicalSeedPooling:
    if config.pooling == "seeds":
        return SeedPooling(config.width, num_tokens=NUM_SEEDS, heads=config.heads)
    return HierarchicalSeedPooling(config.width, num_seeds=SEEDS_OF_HIERARCHY, num_tokens=NUM_SEEDS, heads=config.heads)


def _form(config: ModelConfig, num_positions: int, *, window: int | None = None) -> Pointwise:
    return pointwise(
        config.width // config.heads, num_positions, activation=config.activation, scale=config.scale, window=window
    )


def _wukong(num_tokens: int, config: ModelConfig) -> WukongLayer:
    half = config.interaction_tokens
    return WukongLayer(num_tokens, config.width, num_fm=half, num_linear=half, rank=half, hidden=config.hidden)
