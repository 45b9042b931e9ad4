"""The GPU check's own network: `nn.Embedding` tables under the blocks of the foundation model that need torch alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_timing import (
    CHECKED,
    FORWARD_AND_BACKWARD,
    TF32,
    Check,
    Run,
    Size,
    Timed,
    drawn_lengths,
    offsets_of,
    products_as,
    relative_error,
    time_runs,
)
from foundation.model.cross import CrossNetwork
from foundation.model.gdpa import pointwise
from foundation.model.hstu import HstuLayer
from foundation.model.target_attention import TargetAttention
from foundation.model.wukong import WukongLayer

TOLERANCE = 2e-4  # float32 through a dozen layers and back
LAYERS, TOKENS = 2, 4
LEARNING_STEPS = 20


@dataclass(frozen=True, slots=True)
class Batch:
    """B requests with C candidates and T events: users [B], items [C], events [T], offsets [B + 1], labels [C]."""

    users: Tensor
    items: Tensor
    events: Tensor
    item_offsets: Tensor
    event_offsets: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Batch:
        """On a device."""
        return Batch(*(getattr(self, each.name).to(device) for each in fields(self)))

    def request(self, place: int) -> Batch:
        """One request as a batch of its own."""
        items, events = (slice(*each[place : place + 2].tolist()) for each in (self.item_offsets, self.event_offsets))
        of_items, of_events = (torch.tensor([0, part.stop - part.start]) for part in (items, events))
        return Batch(
            self.users[[place]], self.items[items], self.events[events], of_items, of_events, self.labels[items]
        )


def drawn_batch(size: Size) -> Batch:
    """Random ids, and labels that the item alone decides, so that there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    lengths = drawn_lengths(size, 3)
    counts = torch.full((size.requests,), size.candidates)
    numbers = (size.requests, int(counts.sum()), int(lengths.sum()))
    users, items, events = (torch.randint(size.table_rows, (number,), generator=generator) for number in numbers)
    return Batch(users, items, events, offsets_of(counts), offsets_of(lengths), (items % 3 == 0).float())


class Network(nn.Module):
    """Events through HSTU layers, candidates that ask them, factorisation and cross layers, a head: [C] logits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        form = pointwise(width // size.heads, size.longest)
        self.users, self.items, self.kinds = (nn.Embedding(size.table_rows, width, sparse=True) for _ in range(3))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)
        self.encoder = nn.ModuleList(HstuLayer(width, size.heads, form) for _ in range(LAYERS))
        self.attention = TargetAttention(width, size.heads, form)
        self.interaction = WukongLayer(TOKENS, width, num_fm=TOKENS, num_linear=TOKENS, rank=TOKENS, hidden=size.hidden)
        self.cross = CrossNetwork(width, 2 * width, num_layers=2, rank=None)
        self.first = nn.Linear((2 * TOKENS + 3) * width, size.hidden)
        self.head = nn.Linear(size.hidden, 1)

    @property
    def tables(self) -> tuple[nn.Embedding, ...]:
        """What learns by rows."""
        return self.users, self.items, self.kinds

    def forward(self, batch: Batch) -> Tensor:
        """[C]."""
        user, item = self.users(batch.users), self.items(batch.items)
        events = self.items(batch.events) + self.kinds(batch.events)
        for layer in self.encoder:
            events = layer(events, batch.event_offsets)
        answers = self.attention(item, events, batch.item_offsets, batch.event_offsets)
        counts = batch.item_offsets.diff()
        owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        tokens = torch.stack([user[owner], item, answers, item * answers], dim=1)
        crossed = self.cross(user, torch.cat([item, answers], dim=1), owner)
        inputs = torch.cat([self.interaction(tokens).flatten(1), crossed], dim=1)
        return self.head(functional.relu(self.first(inputs))).squeeze(1)

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross entropy, a scalar."""
        logits = self(batch).to(self.head.weight.dtype)  # autocast gives fewer bits
        return functional.binary_cross_entropy_with_logits(logits, batch.labels.to(logits.dtype))


def useful_flops(size: Size, batch: Batch) -> float:
    """Of learning from the batch: each request by itself, where nothing is padded, on a CPU."""
    network = Network(replace(size, table_rows=1))
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        for place in range(len(batch.users)):
            one = batch.request(place)
            network(
                Batch(one.users * 0, one.items * 0, one.events * 0, one.item_offsets, one.event_offsets, one.labels)
            )
        total = counter.get_total_flops()
    return float(FORWARD_AND_BACKWARD * total)


def _product(_out: object, left: tuple[int, ...], right: tuple[int, ...], **_named: object) -> int:
    return 2 * left[0] * left[1] * left[2] * right[2]


IN_PLACE: dict[object, Callable[..., int]] = {torch.ops.aten.baddbmm_: _product}
"""What torch does not count by itself, and attention on a CPU is made of."""


def check_network(device: torch.device) -> list[Check]:
    """Loss, logits and every gradient in float32 on the device against float64 on the CPU; and that it learns."""
    torch.manual_seed(0)
    network, batch = Network(CHECKED), drawn_batch(CHECKED)
    exact = copy.deepcopy(network).double()
    network.to(device)
    with products_as("float32"):
        got, expected = (_found(*pair) for pair in ((network, batch.to(device)), (exact, batch)))
        losses = _losses(network, batch.to(device))
    return [
        Check("network of our blocks, logits and gradients, float32", relative_error(got, expected), TOLERANCE),
        Check(f"network of our blocks, loss after {LEARNING_STEPS} steps over the first", losses[-1] / losses[0], 0.9),
    ]


def _found(network: Network, batch: Batch) -> list[Tensor]:
    network.zero_grad()
    loss = network.loss(batch)
    loss.backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient is not None for gradient in gradients), "every parameter is used"
    dense = [each.to_dense() if each.is_sparse else each for each in gradients if each is not None]
    return [loss, network(batch), *dense]


def _losses(network: Network, batch: Batch) -> list[float]:
    step = _step(network, batch)
    return [float(step()) for _ in range(LEARNING_STEPS)]


def _step(network: Network, batch: Batch, kind: str = "float32") -> Callable[[], Tensor]:
    """Forward, backward, AdamW for what is dense and AdaGrad for the tables; the loss before."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch's default, said aloud: it warns where it is not
    tables = [table.weight for table in network.tables]
    by_rows = {id(table) for table in tables}
    dense = [parameter for parameter in network.parameters() if id(parameter) not in by_rows]
    optimizers = torch.optim.AdamW(dense, lr=1e-3, fused=True), torch.optim.Adagrad(tables, lr=0.1)
    low = kind not in {"float32", TF32}

    def step() -> Tensor:
        with products_as(kind) as dtype:
            with torch.autocast(batch.users.device.type, dtype=dtype, enabled=low):
                loss = network.loss(batch)
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        return loss.detach()

    return step


def time_network(device: torch.device, size: Size, peaks: dict[str, float]) -> list[Timed]:
    """Steps of the network, by kind of number."""
    batch = drawn_batch(size)
    flops = useful_flops(size, batch)
    network, moved = Network(size).to(device), batch.to(device)
    runs = {
        f"step, nn.Embedding, {kind}": Run(_step(network, moved, kind), flops, peak) for kind, peak in peaks.items()
    }
    return time_runs(runs, device, size.rounds)
