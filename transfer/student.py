"""The student: a small model that splits into a user half, computed once a request, and a candidate half.

    request ids, mean of each history ──→ user half ──┐
    candidate ids, history-match signals ─→ candidate half ─(+)→ ReLU → hidden layers → serving head → logits
                                                                                     └→ auxiliary head (training only)

The first layer is one matrix cut in two, `[W_user; W_candidate]`, so no product is repeated for each candidate
(serving measures 2x over the tiled form at 512 candidates).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.model.conditional import Products, compose, products_of
from foundation.model.embedding import LookedUp, TableModel, TokenEmbedding
from foundation.model.inputs import RequestTensors
from foundation.model.match import NUM_SIGNALS
from transfer.config import StudentConfig
from transfer.losses import scale_gradient


@dataclass(frozen=True, slots=True)
class StudentShape:
    """Which features a student reads, in the order its first layer expects them.

    Attributes:
        request, candidate: names of the id features.
        events: names of the id features of an event, by log.
        num_item_fields: the first id features of candidates and events, which describe the item and are matched.
    """

    request: tuple[str, ...]
    candidate: tuple[str, ...]
    events: dict[str, tuple[str, ...]]
    num_event_numbers: dict[str, int]
    num_request_numbers: int
    num_candidate_numbers: int
    num_item_fields: int

    @classmethod
    def of(cls, schema: Schema) -> StudentShape:
        """The shape of a student that reads every feature of the schema."""
        return cls(
            request=tuple(f.name for f in ids_of(schema.request_features())),
            candidate=tuple(f.name for f in ids_of(schema.candidate_features())),
            events={log: tuple(f.name for f in ids_of(schema.event_features(log))) for log in schema.data.events},
            num_event_numbers={log: len(numbers_of(schema.event_features(log))) for log in schema.data.events},
            num_request_numbers=len(numbers_of(schema.request_features())),
            num_candidate_numbers=len(numbers_of(schema.candidate_features())),
            num_item_fields=len(ids_of(schema.item_features())),
        )

    def user_width(self, width: int) -> int:
        """Inputs of the user half."""
        num_embedded = len(self.request) + sum(len(names) for names in self.events.values())
        return num_embedded * width + sum(self.num_event_numbers.values()) + self.num_request_numbers

    def candidate_width(self, width: int) -> int:
        """Inputs of the candidate half."""
        num_signals = len(self.events) * self.num_item_fields * NUM_SIGNALS
        return len(self.candidate) * width + self.num_candidate_numbers + num_signals


class StudentNetwork(nn.Module):
    """The dense part, which is trained and exported alike."""

    def __init__(
        self, shape: StudentShape, config: StudentConfig, num_objectives: int, *, products: Products = ()
    ) -> None:
        super().__init__()
        self.products = products
        first, *rest = config.hidden
        self.user_half = nn.Linear(shape.user_width(config.width), first)
        self.candidate_half = nn.Linear(shape.candidate_width(config.width), first, bias=False)
        layers: list[nn.Module] = [nn.ReLU()]
        for before, after in zip(config.hidden[:-1], rest, strict=True):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(config.hidden[-1], num_objectives)

    def backbone(self, user: Tensor, candidate: Tensor) -> Tensor:
        """[N or 1, first] user half's output, [N, candidate inputs] → [N, last]."""
        return self.hidden(user + self.candidate_half(candidate))

    def logits(self, features: Tensor) -> Tensor:
        """[N, last] → [N, K] log odds."""
        return compose(self.head(features), self.products)


class Student(TableModel):
    """A student in training; `gradient_scale=None` is the no-transfer twin."""

    def __init__(
        self, schema: Schema, config: StudentConfig, objectives: tuple[str, ...], *, gradient_scale: float | None
    ) -> None:
        super().__init__()
        self.shape = StudentShape.of(schema)
        self.embedding = TokenEmbedding(schema, tuple(schema.data.events), config.width)
        products = products_of(schema, objectives)
        self.network = StudentNetwork(self.shape, config, len(objectives), products=products)
        self.gradient_scale = gradient_scale
        self.auxiliary: nn.Module | None = None
        if gradient_scale is not None:
            # A fork, so that student and twin of one seed start from the same parameters.
            with torch.random.fork_rng(devices=[]):
                last = config.hidden[-1]
                self.auxiliary = nn.Sequential(nn.Linear(last, last), nn.ReLU(), nn.Linear(last, len(objectives)))

    def forward(self, inputs: LookedUp) -> tuple[Tensor, Tensor | None]:
        """(serving logits [C, K], auxiliary logits [C, K] or None for a twin)."""
        batch, tokens = inputs.batch, inputs.tokens
        owner = batch.request_of_candidate
        user = torch.cat([*self._request_parts(tokens, batch), batch.numbers], dim=1)
        candidate = torch.cat(
            [
                *(tokens[f"candidate.{name}"] for name in self.shape.candidate),
                batch.candidate_numbers,
                batch.matches(self.shape.num_item_fields),
            ],
            dim=1,
        )
        features = self.network.backbone(self.network.user_half(user)[owner], candidate)
        if self.auxiliary is None or self.gradient_scale is None:
            return self.network.logits(features), None
        return self.network.logits(features), self.auxiliary(scale_gradient(features, self.gradient_scale))

    def _request_parts(self, tokens: dict[str, Tensor], batch: RequestTensors) -> list[Tensor]:
        parts = [tokens[f"request.{name}"] for name in self.shape.request]
        for log, names in self.shape.events.items():
            history = batch.histories[log]
            events = torch.cat([*(tokens[f"history.{log}.{name}"] for name in names), history.numbers], dim=1)
            counts = history.offsets.diff()
            owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
            total = events.new_zeros((len(counts), events.shape[1])).index_add(0, owner, events)
            parts.append(total / counts.clamp(min=1).unsqueeze(1))
        return parts
