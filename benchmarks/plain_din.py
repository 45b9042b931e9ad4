"""DIN as libraries have it: each row carries its own history, padded to the longest; beside gemcut's recipe `din`.

`python -m benchmarks.plain_din PROJECT` trains both on the same rows, one after the other, and prints rows/s and AUC.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.command import ProjectArgument, SetOption, command_line, run
from benchmarks.network import Learner, Tables, known_cross_entropy, mlp, probabilities_of, start_at_rates
from benchmarks.rows import read_rows
from eval.metrics.ranking import auc
from foundation.data.batch import History, RequestBatch
from foundation.data.reader import Reader
from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.data.store import Store
from foundation.soft_labels import read_soft_labels
from foundation.training.foundation_model import train_foundation
from foundation.training.job import FoundationJob
from foundation.training.labels import counted_labels
from gemcut.project import load_project
from gemcut.workspace import Workspace
from serving.ages import age_days

EVENTS, WIDTH, UNIT, HIDDEN = 50, 16, 36, (256, 128)
JUDGED = 0.2


@dataclass(frozen=True, slots=True)
class Padded:
    """A log's events of N rows, each row with its own copy: [N, L, ...], newest last, `there` where one is."""

    ids: Tensor
    numbers: Tensor
    there: Tensor


class PlainDin(nn.Module):
    """Target attention over each row's padded events, then hidden layers of 256 and 128.

    Source: DIN (arXiv 1706.06978, section 4.3): unit on [q, k, q - k, q * k], weights not normalised.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.schema = schema
        request, candidate = schema.request_features(), schema.candidate_features()
        self.columns = [feature.table_name for feature in (*ids_of(request), *ids_of(candidate))]
        self.item_columns = [feature.table_name for feature in ids_of(schema.item_features())]
        self.num_request_ids = len(ids_of(request))
        self.events = {log: [f.table_name for f in ids_of(schema.event_features(log))] for log in schema.data.events}
        names = dict.fromkeys([*self.columns, *(table for tables in self.events.values() for table in tables)])
        self.tables = Tables(schema, tuple(names), WIDTH)
        query = len(self.item_columns) * WIDTH
        self.units = nn.ModuleDict(
            {log: nn.Sequential(mlp(4 * query, (UNIT,)), nn.Linear(UNIT, 1)) for log in self.events}
        )
        num_inputs = len(self.columns) * WIDTH + len(numbers_of(request)) + len(numbers_of(candidate))
        for log, columns in self.events.items():
            num_inputs += len(columns) * WIDTH + len(numbers_of(schema.event_features(log))) + 1
        self.deep = mlp(num_inputs, HIDDEN)
        self.out = nn.Linear(HIDDEN[-1], len(schema.objectives))

    def forward(self, ids: Tensor, numbers: Tensor, histories: dict[str, Padded]) -> Tensor:
        """[N, F] and [N, G] of request and candidate, and the histories → [N, K] logits."""
        parts = [self.tables(ids, self.columns), numbers]
        num_item_ids = len(self.item_columns)
        query = self.tables(ids[:, self.num_request_ids :][:, :num_item_ids], self.item_columns).unsqueeze(1)
        for log, history in histories.items():
            events = self.tables(history.ids, self.events[log])
            key = events[..., : num_item_ids * WIDTH]
            asked = query.expand_as(key)
            weights = self.units[log](torch.cat([asked, key, asked - key, asked * key], dim=2))
            values = torch.cat([events, history.numbers], dim=2)
            parts.append((weights * history.there.unsqueeze(2) * values).sum(1))
        return self.out(self.deep(torch.cat(parts, dim=1)))


def padded(batch: RequestBatch, history: History) -> Padded:
    """Every row's newest events, each row with a copy of its own."""
    owner = np.repeat(np.arange(batch.num_requests), np.diff(batch.candidate_offsets))
    places = history.offsets[1:][owner, None] + np.arange(-EVENTS, 0)
    there = places >= history.offsets[:-1][owner, None]
    safe = np.where(there, places, 0)
    if len(history.times) == 0:
        shape = (*safe.shape, history.ids.shape[1]), (*safe.shape, history.numbers.shape[1] + 1)
        return Padded(torch.zeros(shape[0], dtype=torch.int64), torch.zeros(shape[1]), torch.from_numpy(there))
    now = np.broadcast_to(batch.times[owner, None], safe.shape)
    ages = np.log1p(age_days(np.where(there, now, history.times[0]), history.times[safe])).astype(np.float32)
    numbers = np.concatenate([history.numbers[safe], np.where(there, ages, np.float32(0))[..., None]], axis=2)
    return Padded(torch.from_numpy(history.ids[safe]), torch.from_numpy(numbers), torch.from_numpy(there))


@dataclass(frozen=True, slots=True)
class Trained:
    """A pass: rows a second over all of it, reading included, and the progressive logits [N, K] of rows [N]."""

    rows_per_s: float
    row_ids: NDArray[np.int64]
    logits: NDArray[np.float32]


def train_plain(store: Store, job: FoundationJob) -> Trained:
    """One pass of the padded model over the rows before `job.until_us`, at the rates and batches of the job."""
    training = job.config.training
    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    network = PlainDin(job.schema)
    learner = Learner(
        network, network.tables, dense_rate=training.dense_learning_rate, table_rate=training.table_learning_rate
    )
    exists = job.schema.head_exists()
    limits = dict.fromkeys(job.schema.data.events, EVENTS)
    row_ids, scores = [], []
    started = time.perf_counter()
    positions = store.select(end=job.until_us)
    with Reader(store, job.schema, positions, training.batch_requests, history_limits=limits) as reader:
        for batch in reader:
            owner = np.repeat(np.arange(batch.num_requests), np.diff(batch.candidate_offsets))
            ids = torch.from_numpy(np.concatenate([batch.ids[owner], batch.candidate_ids], axis=1))
            numbers = torch.from_numpy(np.concatenate([batch.numbers[owner], batch.candidate_numbers], axis=1))
            labels = torch.from_numpy(
                np.where(exists[batch.surfaces[owner]], counted_labels(batch, job.schema), np.float32(np.nan))
            )
            if not scores:
                start_at_rates(network.out, labels)
            histories = {log: padded(batch, history) for log, history in batch.histories.items()}
            logits = network(ids, numbers, histories)
            learner.learn(known_cross_entropy(logits, labels))
            row_ids.append(batch.row_ids)
            scores.append(logits.detach().numpy())
    seconds = time.perf_counter() - started
    rows = np.concatenate(row_ids)
    return Trained(len(rows) / seconds, rows, np.concatenate(scores))


def train_recipe(store: Store, job: FoundationJob) -> Trained:
    """The same pass by gemcut, in a folder that is empty before."""
    report = train_foundation(job)
    digest = job.schema.schema_digest()
    labels = read_soft_labels(job.folder / "soft_labels", data_fingerprint=store.fingerprint, schema_digest=digest)
    return Trained(report.stream.num_rows / report.stream.seconds, labels.row_ids, labels.logits)


def compare_din(
    path: Path, *, requests: int | None, threads: int, overrides: Sequence[str] = ()
) -> Mapping[str, object]:
    """Both on the first requests of a store (all if None); AUC of the last fifth of the rows, by objective.

    Labels that come late are learned at once by both: it is speed that is compared.
    """
    schema = load_project(path, overrides).project
    events = min([EVENTS, *(log.limit for log in schema.data.events.values())])
    overrides = [*overrides, f"foundation.model={{recipe: din, encoder_events: {events}}}"]
    overrides += [f"foundation.training.threads={threads}", "foundation.training.checkpoint_every=1000000000"]
    overrides += ["foundation.training.average_steps=null", "foundation.training.decay_steps=null"]  # as the plain one
    overrides += [f"objectives.{name}.delay=PT0S" for name, one in schema.objectives.items() if one.delay]
    loaded = load_project(path, overrides)
    space, project = Workspace(loaded), loaded.project
    store = Store.open(space.store, project)
    positions = store.select()[:requests]
    until_us = int(store.times[positions[-1]]) + 1
    with tempfile.TemporaryDirectory(prefix="gemcut-din-") as folder:
        job = FoundationJob(project, project.foundation, space.store, Path(folder), until_us)
        trained = {"plain, padded": train_plain(store, job), "gemcut din": train_recipe(store, job)}
    return {"rows": len(trained["plain, padded"].row_ids)} | {
        name: {"rows_per_s": round(one.rows_per_s, 1), "auc": _judged(store, project, one, until_us=until_us)}
        for name, one in trained.items()
    }


def _judged(store: Store, schema: Schema, trained: Trained, *, until_us: int) -> dict[str, float]:
    rows = read_rows(store, schema, store.select(end=until_us))
    order = np.argsort(trained.row_ids)
    found = order[np.searchsorted(trained.row_ids, rows.row_ids, sorter=order)]
    assert np.array_equal(trained.row_ids[found], rows.row_ids), "each row was scored"
    last = slice(int((1 - JUDGED) * rows.num_rows), None)
    scores: dict[str, float] = {}
    for place, name in enumerate(schema.objectives):
        labels, chances = rows.labels[last, place], probabilities_of(trained.logits[found][last, place])
        known = np.isfinite(labels)
        scores[name] = round(auc(labels[known], chances[known]), 5)
    return scores


app = command_line()


@app.command(help=__doc__)
def plain_din(
    project: ProjectArgument,
    *,
    requests: Annotated[int | None, typer.Option(min=1, help="Only the first requests of the store.")] = None,
    overrides: SetOption = None,
    threads: Annotated[int, typer.Option(min=1, help="Of both models.")] = 2,
) -> None:
    """See the module."""
    found = compare_din(project, requests=requests, threads=threads, overrides=overrides or ())
    for name, result in found.items():
        print(name, result)
    print(json.dumps(found))


if __name__ == "__main__":
    run(app)
