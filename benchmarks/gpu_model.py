"""The GPU check's foundation model: the default recipe on TorchRec's tables, as `gemcut train` makes and trains it.

To be imported where TorchRec and what the project file is read with are installed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_timing import Check, Run, Size, Timed, drawn_lengths, offsets_of, time_runs
from foundation.config import ModelConfig
from foundation.data.batch import Float32Array, History, Int64Array, RequestBatch
from foundation.data.schema import Schema, ids_of, numbers_of
from foundation.efficiency.flops import counting_model, estimated_useful_flops
from foundation.model.inputs import to_tensors
from foundation.model.recipes import RECIPES
from foundation.parallel.world import World, joined_world
from foundation.training.loss import masked_cross_entropy
from foundation.training.trainer import Trainer, TrainerConfig

NOW_US, DAY_US = 1_700_000_000_000_000, 86_400_000_000
COUNTED_REQUESTS = 16
LEARNING_STEPS = 20
LOG, SURFACES, OBJECTIVES = "actions", ["feed", "search", "related"], ["click", "purchase"]


def drawn_schema(size: Size) -> Schema:
    """Of a shop, with features of every kind."""
    price = {"kind": "number", "name": "price"}
    log = {"files": "-", "limit": size.longest, "features": [{"kind": "id", "name": "action"}]}
    document = {
        "tables": {name: {"buckets": size.table_rows} for name in ("user", "item", "brand", "shop")}
        | {"action": {"buckets": 8}},
        "surfaces": SURFACES,
        "objectives": {name: {} for name in OBJECTIVES},
        "data": {
            "impressions": {
                "files": "-",
                "context": [{"kind": "id", "name": "shop"}, {"kind": "number", "name": "hour"}],
            },
            "events": {LOG: log},
            "items": {"files": "-", "features": [{"kind": "id", "name": "brand"}, price]},
        },
    }
    return Schema.model_validate(document)


def drawn_requests(schema: Schema, size: Size) -> RequestBatch:
    """Random requests; labels are decided by the item, so that there is something to learn."""
    rng, lengths = np.random.default_rng(0), drawn_lengths(size, 3)

    def ids(number: int, names: list[str]) -> Int64Array:
        columns = [rng.integers(0, schema.id_space(name).num_rows, number) for name in names]
        return np.stack(columns, axis=1) if columns else np.zeros((number, 0), dtype=np.int64)

    def numbers(number: int, count: int) -> Float32Array:
        return rng.normal(size=(number, count)).astype(np.float32)

    request, candidate, event = schema.request_features(), schema.candidate_features(), schema.event_features(LOG)
    num_candidates, num_events = size.requests * size.candidates, int(lengths.sum())
    of_request = [feature.table_name for feature in ids_of(request)]
    of_candidate = [feature.table_name for feature in ids_of(candidate)]
    candidate_ids = ids(num_candidates, of_candidate)
    bought = candidate_ids[:, of_candidate.index("item")] % 3 == 0
    history = History(
        offsets=offsets_of(lengths).numpy(),
        ids=ids(num_events, [feature.table_name for feature in ids_of(event)]),
        numbers=numbers(num_events, len(numbers_of(event))),
        times=NOW_US - rng.integers(1, 90 * DAY_US, num_events),
    )
    return RequestBatch(
        positions=np.arange(size.requests),
        times=np.full(size.requests, NOW_US),
        users=np.arange(size.requests),
        surfaces=rng.integers(0, len(SURFACES), size.requests),
        ids=ids(size.requests, of_request),
        numbers=numbers(size.requests, len(numbers_of(request))),
        candidate_offsets=np.arange(size.requests + 1) * size.candidates,
        candidate_ids=candidate_ids,
        candidate_numbers=numbers(num_candidates, len(numbers_of(candidate))),
        row_ids=np.arange(num_candidates),
        labels=np.repeat(bought[:, None], len(OBJECTIVES), axis=1).astype(np.float32),
        histories={LOG: history},
    )


def model_of(size: Size) -> ModelConfig:
    """The default recipe with one round of its encoder, as wide as the check's own network."""
    return ModelConfig(
        width=size.width,
        heads=size.heads,
        hidden=size.hidden,
        encoder_events=size.longest,
        interleaved_layers=1,
    )


def check_and_time_model(device: torch.device, size: Size, peaks: dict[str, float]) -> tuple[list[Check], list[Timed]]:
    """That it learns, by kind of number, and its steps."""
    schema, config = drawn_schema(size), model_of(size)
    batch = drawn_requests(schema, size)
    count = estimated_useful_flops(counting_model(schema, config), [batch], num_requests=COUNTED_REQUESTS)
    checks: list[Check] = []
    runs: dict[str, Run] = {}
    with joined_world(torch.get_num_threads()) as world:
        for kind in (kind for kind in peaks if hasattr(torch, kind)):
            step = _Step(schema, config, batch, world, getattr(torch, kind))
            losses = [float(step()) for _ in range(LEARNING_STEPS)]
            name = f"foundation model, loss after {LEARNING_STEPS} steps over the first, {kind}"
            checks.append(Check(name, losses[-1] / losses[0], 0.9))
            runs[f"step, foundation model on TorchRec, {kind}"] = Run(step, float(count.training), peaks[kind])
        return checks, time_runs(runs, device, size.rounds)


class _Step:
    """One step of a trainer over one batch; the loss before."""

    def __init__(
        self, schema: Schema, config: ModelConfig, batch: RequestBatch, world: World, matmul: torch.dtype
    ) -> None:
        torch.manual_seed(0)
        rates = TrainerConfig(dense_learning_rate=1e-3, table_learning_rate=0.1, matmul=matmul)
        self._trainer = Trainer(RECIPES[config.recipe](schema, config), world, rates)
        self._batch, self._world = batch, world
        self._labels = torch.from_numpy(batch.labels).to(world.device)
        self._weights = torch.ones(len(schema.objectives), device=world.device)

    def __call__(self) -> Tensor:
        prepared = self._trainer.prepare(to_tensors(self._batch, self._world.device))
        return self._trainer.step(prepared, lambda out: masked_cross_entropy(out, self._labels, self._weights))[1]
