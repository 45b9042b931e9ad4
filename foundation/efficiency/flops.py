"""FLOPs of our own model, counted on its own code: what a batch needs, and what it is made to do.

An architecture is not described a second time here. A request that stands alone has nothing to be padded to, so what
torch counts for the requests one by one is the work that they need; what it counts for the batch is what is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from foundation.config import ModelConfig
from foundation.data.batch import RequestBatch
from foundation.data.schema import Schema
from foundation.efficiency.layouts import chosen, one_by_one
from foundation.model.embedding import TableModel, TokenEmbedding
from foundation.model.inputs import RequestTensors, keyed_ids, to_tensors
from foundation.model.recipes import RECIPES

FORWARD_AND_BACKWARD = 3
"""A matrix product's gradients are two products of its size."""

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class FlopCount:
    """Matrix products of a forward pass, and what is looked up for it.

    Attributes:
        by_part: FLOPs by module, inner ones included; "" is the whole model. 2 a multiplication and addition.
        embedding_bytes: of the table rows that are looked up.
    """

    by_part: dict[str, int]
    embedding_bytes: int

    @property
    def total(self) -> int:
        """FLOPs of the whole model."""
        return self.by_part.get("", 0)

    @property
    def training(self) -> int:
        """FLOPs of learning: forward and backward, no activation computed twice."""
        return FORWARD_AND_BACKWARD * self.total

    def step(self, *, scored_apart: bool) -> int:
        """FLOPs of a step: learning, and a forward pass more where scores come from averaged parameters."""
        return self.training + (self.total if scored_apart else 0)


class ZeroTokens(nn.Module):
    """Stands in for a `TokenEmbedding` where only shapes matter: no table, no rank, no device."""

    def __init__(self, keys: tuple[tuple[str, str], ...], width: int) -> None:
        super().__init__()
        self.keys, self.width = keys, width

    def start(self, batch: RequestTensors) -> RequestTensors:
        """As `TokenEmbedding`; nothing travels."""
        return batch

    def forward(self, batch: RequestTensors) -> dict[str, Tensor]:
        """As `TokenEmbedding`, all zeros."""
        counts = keyed_ids(batch, self.keys).length_per_key()
        return {key: torch.zeros(count, self.width) for (key, _), count in zip(self.keys, counts, strict=True)}


def counting_model(schema: Schema, config: ModelConfig) -> TableModel:
    """The recipe's model on a CPU, without its tables: for shapes, not for values."""
    model = RECIPES[config.recipe](schema, config.model_copy(update={"checkpoint_activations": False}))
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, TokenEmbedding)]
    for name, module in found:
        model.set_submodule(name, ZeroTokens(module.keys, module.collection.embedding_dim()))
    return model


def executed_flops(model: TableModel, batch: RequestBatch) -> FlopCount:
    """What a forward pass of a `counting_model` over a batch does, padding included."""
    looked_up: list[int] = []

    def note(_module: nn.Module, _inputs: object, tokens: dict[str, Tensor]) -> None:
        looked_up.extend(token.numel() * FLOAT32_BYTES for token in tokens.values())

    hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, ZeroTokens)]
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        model.of_batch(to_tensors(batch, torch.device("cpu")))
    for hook in hooks:
        hook.remove()
    counts = {name: sum(counted.values()) for name, counted in counter.get_flop_counts().items()}
    root = type(model).__name__
    by_part = {name.removeprefix(root).removeprefix("."): count for name, count in counts.items() if name != "Global"}
    return FlopCount(by_part | {"": counts["Global"]}, sum(looked_up))


def useful_flops(model: TableModel, batches: Iterable[RequestBatch]) -> FlopCount:
    """What a forward pass over each batch needs: every request by itself, without padding.

    What does not depend on the requests, such as a product of two parameters, is done once a batch, and so counted
    once: it is what a batch of no request costs. A window of attention is counted with the blocks that are computed for
    it, about twice what it sees.

    Args:
        model: a `counting_model`.
        batches: at least one, none of them empty.
    """
    flops: Counter[str] = Counter()
    embedding_bytes = 0
    for batch in batches:
        fixed = executed_flops(model, chosen(batch, batch.positions[:0])).by_part
        flops.update(fixed)
        for request in one_by_one(batch):
            count = executed_flops(model, request)
            flops.update(count.by_part)
            flops.subtract(fixed)
            embedding_bytes += count.embedding_bytes
    return FlopCount(dict(flops), embedding_bytes)


def estimated_useful_flops(model: TableModel, batches: list[RequestBatch], *, num_requests: int) -> FlopCount:
    """`useful_flops` of the batches, where counting each request by itself would take too long.

    What is executed is counted over all; the share of it that is useful, by part, on evenly spread requests of the
    first batch. Fewer requests are grouped less well, so the share is rather too low.
    """
    places = np.linspace(0, batches[0].num_requests - 1, min(num_requests, batches[0].num_requests)).astype(np.int64)
    sample = chosen(batches[0], places)
    needed, done = useful_flops(model, [sample]).by_part, executed_flops(model, sample).by_part
    counts = [executed_flops(model, batch) for batch in batches]
    executed = sum((Counter(count.by_part) for count in counts), Counter[str]())
    share = {name: needed.get(name, 0) / count if count else 1.0 for name, count in done.items()}
    by_part = {name: round(count * share.get(name, 1.0)) for name, count in executed.items()}
    return FlopCount(by_part, sum(count.embedding_bytes for count in counts))


def _product(_out: object, left: tuple[int, ...], right: tuple[int, ...], **_named: object) -> int:
    batch, rows, inner = left
    return 2 * batch * rows * inner * right[2]


IN_PLACE: dict[object, Callable[..., int]] = {torch.ops.aten.baddbmm_: _product}
"""What torch does not count by itself."""
