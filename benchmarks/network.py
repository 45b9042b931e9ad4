"""What the torch baselines share: embeddings of id columns, hidden layers, the loss, one step of learning."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from foundation.data.schema import Schema


class Tables(nn.Module):
    """Embedding tables under one another; columns of one table share it. Gradients are sparse."""

    def __init__(self, schema: Schema, names: Sequence[str], width: int) -> None:
        super().__init__()
        sizes = {name: schema.id_space(name).num_rows for name in names}
        ends = np.cumsum(list(sizes.values())).tolist()
        self.first = dict(zip(sizes, [0, *ends], strict=False))
        self.rows = nn.Embedding(ends[-1], width, sparse=True)
        nn.init.normal_(self.rows.weight, std=0.05)

    def forward(self, ids: Tensor, tables: Sequence[str]) -> Tensor:
        """[..., F] rows of these F tables → [..., F * D]."""
        return self.rows(ids + torch.tensor([self.first[table] for table in tables])).flatten(-2)


def mlp(num_inputs: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths, a ReLU after each."""
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise((num_inputs, *hidden))]
    return nn.Sequential(*(part for pair in layers for part in pair))


def known_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over objectives of the mean over their known labels; NaN is unknown."""
    known = labels.isfinite()
    losses = functional.binary_cross_entropy_with_logits(logits, labels.nan_to_num(), reduction="none")
    return ((losses * known).sum(0) / known.sum(0).clamp(min=1)).sum()


def start_at_rates(output: nn.Linear, labels: Tensor) -> None:
    """Biases at the log odds of some labels [N, K], with one made-up row of each label, so that none is infinite."""
    positives, negatives = 1 + (labels == 1).sum(0), 1 + (labels == 0).sum(0)
    with torch.no_grad():
        output.bias.copy_(torch.log(positives / negatives))


class Learner:
    """A network's two optimizers: AdaGrad for the tables, AdamW for all else."""

    def __init__(self, network: nn.Module, tables: Tables, *, dense_rate: float, table_rate: float) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()  # torch's default, said aloud: it warns where it is not
        weights = tables.rows.weight
        dense = [parameter for parameter in network.parameters() if parameter is not weights]
        self.optimizers = (
            torch.optim.AdamW(dense, lr=dense_rate, weight_decay=0.0),
            torch.optim.Adagrad([weights], lr=table_rate),
        )

    def learn(self, loss: Tensor) -> None:
        """One step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()


def probabilities_of(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Sigmoid, in float64."""
    return 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -500, 500)))
