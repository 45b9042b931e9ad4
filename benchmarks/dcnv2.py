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

from benchmarks.command import ProjectArgument, SetOption, ThreadsOption, command_line, run
from benchmarks.network import Learner, Tables, known_cross_entropy, mlp, probabilities_of, start_at_rates
from benchmarks.opened import opened, table_of
from benchmarks.rows import Rows
from foundation.training.labels import label_delays

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
    threads: int = 2
    seed: int = 0


LEARNING = "late labels in full batches"
"""What distinguishes these predictions from those of earlier versions."""

RATES = ((1e-3, 0.05), (3e-3, 0.05), (1e-3, 0.02), (1e-3, 0.1))
"""(network, embeddings): what is tried on the training period."""


class Dcnv2(nn.Module):
    """Full-rank cross layers beside an MLP; one logit an objective.

    Source: DCN-V2 (arXiv 2008.13535), parallel structure.
    """

    def __init__(self, rows: Rows, config: Dcnv2Config) -> None:
        super().__init__()
        self.columns, num_outputs = rows.id_tables, rows.labels.shape[1]
        self.tables = Tables(rows.schema, self.columns, config.width)
        num_inputs = len(self.columns) * config.width + rows.numbers.shape[1]
        self.cross = nn.ModuleList(nn.Linear(num_inputs, num_inputs) for _ in range(config.cross_layers))
        self.deep = mlp(num_inputs, config.hidden)
        self.out = nn.Linear(num_inputs + config.hidden[-1], num_outputs)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """[N, F] and [N, G] → [N, K] logits."""
        crossed = inputs = torch.cat([self.tables(ids, self.columns), numbers], dim=1)
        for layer in self.cross:
            crossed = torch.addcmul(crossed, inputs, layer(crossed))
        return self.out(torch.cat([crossed, self.deep(inputs)], dim=1))


@dataclass(frozen=True, slots=True)
class Step:
    """Rows first:last are scored; then rows of each `ripe` range are learned, from the objectives of its places."""

    first: int
    last: int
    ripe: tuple[tuple[int, int, tuple[int, ...]], ...]


def steps_of(rows: Rows, batch_requests: int, *, end: int, cut: int | None = None) -> Iterator[Step]:
    """A pass over the first `end` rows: a label is learned once, when it was settled before its batch's first request.

    Labels without delay are learned with their own batch; late ones when as many rows have one as the batch has rows. A
    few of them at every step would weigh as much as all that the batch itself says. Before the batch that holds row
    `cut` no settled one is left.
    """
    delays = label_delays(rows.schema).tolist()
    places = {delay: tuple(k for k, other in enumerate(delays) if other == delay) for delay in sorted(set(delays))}
    learned = dict.fromkeys(places, 0)
    has_any = {delay: np.isfinite(rows.labels[:end, columns]).any(axis=1) for delay, columns in places.items()}
    known = {delay: np.append(0, found.cumsum()) for delay, found in has_any.items()}
    edges = rows.offsets[: int(np.searchsorted(rows.offsets, end, side="left")) + 1][::batch_requests]
    bounds = np.unique(np.append(edges, end))
    before_cut = None if cut is None else int(bounds[np.searchsorted(bounds, cut, side="right") - 1])
    for first, last in pairwise(bounds.tolist()):
        ripe: list[tuple[int, int, tuple[int, ...]]] = []
        for delay, columns in places.items():
            settled = last if delay == 0 else int(np.searchsorted(rows.times, rows.times[first] - delay, "left"))
            ready = min(last, settled)
            waiting = int(known[delay][ready] - known[delay][learned[delay]])
            if waiting and (delay == 0 or waiting >= last - first or last == before_cut):
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
    torch.manual_seed(config.seed)
    end = rows.num_rows if end is None else end
    network = Dcnv2(rows, config)
    learner = Learner(
        network, network.tables, dense_rate=config.dense_learning_rate, table_rate=config.table_learning_rate
    )
    ids, numbers, labels = (torch.from_numpy(x) for x in (rows.ids, rows.numbers, rows.labels))

    start_at_rates(network.out, labels[: rows.offsets[min(config.batch_requests, len(rows.positions))]])

    def score(chosen: slice | Tensor) -> Tensor:
        return network(ids[chosen].long(), numbers[chosen])

    progressive = np.full((end, labels.shape[1]), np.nan, dtype=np.float32)
    frozen = progressive[:0]
    for step in steps_of(rows, config.batch_requests, end=end, cut=cut):
        if step.first <= cut < step.last:
            frozen = _frozen(score, cut, rows.num_rows)
        outputs = score(slice(step.first, step.last))
        progressive[step.first : step.last] = outputs.detach().numpy()
        losses: list[Tensor] = []
        for first, last, places in step.ripe:
            if (first, last) == (step.first, step.last):
                losses.append(known_cross_entropy(outputs[:, places], labels[first:last, places]))
            else:
                late = first + labels[first:last, places].isfinite().any(dim=1).nonzero().squeeze(1)
                losses.append(known_cross_entropy(score(late)[:, places], labels[late][:, places]))
        if losses:
            learner.learn(torch.stack(losses).sum())
    return Pass(progressive, frozen)


def _frozen(score: Callable[[slice], Tensor], first: int, last: int) -> NDArray[np.float32]:
    with torch.no_grad():
        pieces = [score(slice(start, min(start + SCORING_ROWS, last))) for start in range(first, last, SCORING_ROWS)]
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


app = command_line()


@app.command(help=__doc__)
def dcnv2(project: ProjectArgument, *, overrides: SetOption = None, threads: ThreadsOption = 2) -> None:
    """See the module."""
    chosen = opened(project, overrides or ())
    config = tuned(chosen.rows, Dcnv2Config(threads=threads), cut=chosen.cut)
    done = run_pass(chosen.rows, config, cut=chosen.cut)
    for name, logits in (("frozen", done.frozen), ("progressive", done.progressive[chosen.cut :])):
        chances = probabilities_of(logits)
        print(f"dcnv2 {name}")
        print(table_of(chosen, {key: chances[:, k] for k, key in enumerate(chosen.rows.schema.objectives)}))


if __name__ == "__main__":
    run(app)
