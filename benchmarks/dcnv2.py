"""DCNv2 in plain torch, a row at a time with nothing of the history: one pass in time order, scored before learned.

`python -m benchmarks.dcnv2 PROJECT` prints its AUC on the test period, frozen at the cut and still learning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rows import MICROSECOND, Rows

Tell = Callable[[str], None]

SCORING_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Dcnv2Config:
    """Sizes, and rates of the two optimizers: AdamW for the network, AdaGrad for the embeddings."""

    width: int = 16
    cross_layers: int = 3
    hidden: tuple[int, ...] = (256, 128)
    batch_requests: int = 128
    dense_learning_rate: float = 1e-3
    table_learning_rate: float = 0.05
    weight_decay: float = 0.0
    threads: int = 2
    seed: int = 0


RATES = ((1e-3, 0.05), (3e-3, 0.05), (1e-3, 0.02), (1e-3, 0.1))
"""(network, embeddings): what is tried on the training period."""


class FlatEmbedding(nn.Module):
    """Embeddings of F id columns, [N, F] → [N, F * D]; columns of one table share it. Gradients are sparse."""

    def __init__(self, sizes: dict[str, int], tables: tuple[str, ...], width: int) -> None:
        super().__init__()
        starts = dict(zip(sizes, np.concatenate([[0], np.cumsum(list(sizes.values()))]).tolist(), strict=False))
        self.register_buffer("starts", torch.tensor([starts[table] for table in tables]))
        self.table = nn.Embedding(sum(sizes.values()), width, sparse=True)
        nn.init.normal_(self.table.weight, std=0.05)

    def forward(self, ids: Tensor) -> Tensor:
        """[..., F] rows of the columns' tables → [..., F * D]."""
        return self.table(ids + self.starts).flatten(-2)


class Dcnv2(nn.Module):
    """Full-rank cross layers beside an MLP; one logit an objective.

    Source: DCN-V2 (arXiv 2008.13535), parallel structure.
    """

    def __init__(self, embedding: FlatEmbedding, num_inputs: int, num_outputs: int, config: Dcnv2Config) -> None:
        super().__init__()
        self.embedding = embedding
        self.cross = nn.ModuleList(nn.Linear(num_inputs, num_inputs) for _ in range(config.cross_layers))
        self.deep = mlp(num_inputs, config.hidden)
        self.out = nn.Linear(num_inputs + config.hidden[-1], num_outputs)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """[N, F] and [N, G] → [N, K] logits."""
        crossed = inputs = torch.cat([self.embedding(ids), numbers], dim=1)
        for layer in self.cross:
            crossed = torch.addcmul(crossed, inputs, layer(crossed))
        return self.out(torch.cat([crossed, self.deep(inputs)], dim=1))


def mlp(num_inputs: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths, a ReLU after each."""
    widths = (num_inputs, *hidden)
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*(part for pair in layers for part in pair))


def known_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over objectives of the mean over their known labels; NaN is unknown."""
    known = labels.isfinite()
    losses = functional.binary_cross_entropy_with_logits(logits, labels.nan_to_num(), reduction="none")
    return ((losses * known).sum(0) / known.sum(0).clamp(min=1)).sum()


class Learner:
    """A network with its optimizers."""

    def __init__(self, network: nn.Module, embedding: FlatEmbedding, config: Dcnv2Config) -> None:
        table = embedding.table.weight
        dense = [parameter for parameter in network.parameters() if parameter is not table]
        self.network = network
        self.optimizers = (
            torch.optim.AdamW(dense, lr=config.dense_learning_rate, weight_decay=config.weight_decay),
            torch.optim.Adagrad([table], lr=config.table_learning_rate),
        )

    def learn(self, loss: Tensor) -> None:
        """One step."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()


@dataclass(frozen=True, slots=True)
class Step:
    """Rows first:last are scored; then rows of each `ripe` range are learned, from the objectives of its places."""

    first: int
    last: int
    ripe: tuple[tuple[int, int, tuple[int, ...]], ...]


def steps_of(rows: Rows, batch_requests: int, *, end: int) -> Iterator[Step]:
    """A pass over the first `end` rows: a label is learned once, when it is settled at its batch's first request.

    Labels without delay are learned with their own batch.
    """
    delays = [objective.delay // MICROSECOND for objective in rows.schema.objectives.values()]
    places = {delay: tuple(k for k, other in enumerate(delays) if other == delay) for delay in sorted(set(delays))}
    learned = dict.fromkeys(places, 0)
    edges = rows.offsets[: int(np.searchsorted(rows.offsets, end, side="left")) + 1][::batch_requests]
    bounds = np.unique(np.append(edges, end)).tolist()
    for first, last in pairwise(bounds):
        ripe: list[tuple[int, int, tuple[int, ...]]] = []
        for delay, columns in places.items():
            ready = (
                last if delay == 0 else min(last, int(np.searchsorted(rows.times, rows.times[first] - delay, "right")))
            )
            if ready > learned[delay]:
                ripe.append((learned[delay], ready, columns))
                learned[delay] = ready
        yield Step(first, last, tuple(ripe))


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass said of the rows.

    Attributes:
        progressive: [N, K] float32 logits, each made before the row was learned.
        frozen: [M, K] logits of the rows from the cut on, by the network as it was there.
    """

    progressive: NDArray[np.float32]
    frozen: NDArray[np.float32]


def run_pass(rows: Rows, config: Dcnv2Config, *, cut: int, end: int | None = None) -> Pass:
    """Score and learn rows 0 to `end` in order; before row `cut` is scored, score everything from there on."""
    torch.set_num_threads(config.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch's default, said aloud: it warns where it is not
    torch.manual_seed(config.seed)
    end = rows.num_rows if end is None else end
    sizes = {table: rows.schema.id_space(table).num_rows for table in dict.fromkeys(rows.id_tables)}
    embedding = FlatEmbedding(sizes, rows.id_tables, config.width)
    num_inputs = len(rows.id_tables) * config.width + rows.numbers.shape[1]
    network = Dcnv2(embedding, num_inputs, rows.labels.shape[1], config)
    learner = Learner(network, embedding, config)
    ids, numbers, labels = (torch.from_numpy(x) for x in (rows.ids, rows.numbers, rows.labels))

    def score(first: int, last: int) -> Tensor:
        return network(ids[first:last].long(), numbers[first:last])

    progressive = np.full((end, labels.shape[1]), np.nan, dtype=np.float32)
    frozen = progressive[:0]
    for step in steps_of(rows, config.batch_requests, end=end):
        if step.first <= cut < step.last:
            frozen = _frozen(score, cut, rows.num_rows)
        outputs = score(step.first, step.last)
        progressive[step.first : step.last] = outputs.detach().numpy()
        losses: list[Tensor] = []
        for first, last, places in step.ripe:
            logits = outputs if (first, last) == (step.first, step.last) else score(first, last)
            losses.append(known_cross_entropy(logits[:, places], labels[first:last, places]))
        if losses:
            learner.learn(torch.stack(losses).sum())
    return Pass(progressive, frozen)


def _frozen(score: Callable[[int, int], Tensor], first: int, last: int) -> NDArray[np.float32]:
    with torch.no_grad():
        pieces = [score(start, min(start + SCORING_ROWS, last)) for start in range(first, last, SCORING_ROWS)]
    return torch.cat(pieces).numpy()


def tuned(rows: Rows, config: Dcnv2Config, *, cut: int, holdout: float = 0.2, tell: Tell = print) -> Dcnv2Config:
    """The rates with the least progressive loss over the last share of the rows before the cut."""
    start, until_us = int((1 - holdout) * cut), int(rows.times[cut - 1]) + 1
    settled = np.stack([rows.settled(name, until_us)[start:cut] for name in rows.schema.objectives], axis=1)
    labels = torch.from_numpy(np.where(settled, rows.labels[start:cut], np.float32(np.nan)))
    losses: dict[tuple[float, float], float] = {}
    for dense, table in RATES:
        trial = replace(config, dense_learning_rate=dense, table_learning_rate=table)
        logits = run_pass(rows, trial, cut=cut, end=cut).progressive[start:]
        losses[dense, table] = float(known_cross_entropy(torch.from_numpy(logits), labels))
        tell(f"dcnv2: rates {dense:g} and {table:g}: progressive loss {losses[dense, table]:.5f}")
    dense, table = min(losses, key=lambda rates: losses[rates])
    return replace(config, dense_learning_rate=dense, table_learning_rate=table)


def probabilities_of(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Sigmoid, in float64."""
    return 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -500, 500)))


def main() -> None:
    """Tune, run one pass over a project's store, and print what it scored."""
    from benchmarks.opened import arguments_of, opened, table_of

    arguments = arguments_of(__doc__).parse_args()
    project = opened(arguments.project, arguments.set)
    config = tuned(project.rows, Dcnv2Config(threads=arguments.threads), cut=project.cut)
    done = run_pass(project.rows, config, cut=project.cut)
    for name, logits in (("frozen", done.frozen), ("progressive", done.progressive[project.cut :])):
        chances = probabilities_of(logits)
        print(f"dcnv2 {name}")
        print(table_of(project, {key: chances[:, k] for k, key in enumerate(project.rows.schema.objectives)}))


if __name__ == "__main__":
    main()
