"""What a step of a project's training works on, counted on its model and its store: the input of the cost model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from foundation.config import FoundationConfig
from foundation.data.batch import RequestBatch
from foundation.data.reader import Reader
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.efficiency.flops import FlopCount, ZeroTokens, counting_model, executed_flops
from foundation.model.embedding import TableModel
from foundation.model.inputs import RequestTensors, keyed_ids, to_tensors
from foundation.parallel.traffic import TableUse, Workload
from serving.errors import DataError, Problem

SAMPLED_BATCHES, SAMPLED_REQUESTS = 8, 128
HOT_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """Batches of the training period, evenly spread, and what a forward pass over them looks up.

    Attributes:
        requests: of all batches.
        rows: candidates.
        events: that the model reads, over all logs.
        looked_up: by table, how often each row.
        flops: of a forward pass over all of them, padding included.
    """

    requests: int
    rows: int
    events: int
    looked_up: dict[str, Counter[int]]
    flops: float


def workload_of(schema: Schema, config: FoundationConfig, store: Store, *, until_us: int) -> tuple[Workload, Sample]:
    """Sizes of a project, for steps of its own `batch_requests`.

    Lookups, their distribution over rows, and FLOPs are counted on `SAMPLED_BATCHES` times `SAMPLED_REQUESTS` requests,
    evenly spread over the training period; activations on one of these batches. The model is made without its tables.

    Args:
        schema: the project's data sections.
        config: its `foundation` section.
        store: its open store.
        until_us: end of the training period, microseconds since 1970 UTC.

    Raises:
        DataError: the store has no request before that time.
    """
    batches = _sampled(schema, store, until_us)
    model = counting_model(schema, config.model)
    sample = _counted(model, batches)
    scored_apart = config.training.average_steps is not None
    forward = FlopCount({"": round(sample.flops)}, 0)
    workload = Workload(
        tables=_tables(schema, model, sample, config.model.width),
        dense_parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops_per_request=forward.step(scored_apart=scored_apart) / sample.requests,
        activation_bytes_per_request=kept_bytes(model, batches[len(batches) // 2]),
        rows_per_request=sample.rows / sample.requests,
        requests=config.training.batch_requests,
        scored_apart=scored_apart,
        precision=config.training.precision,
    )
    return workload, sample


def kept_bytes(model: TableModel, batch: RequestBatch) -> float:
    """Bytes that autograd keeps of a forward pass for the backward pass, a request; float32, looked-up rows left out.

    Parameters do not count, and what several operators keep counts once. Ours: measured on the CPU's kernels, so that
    it is an estimate for other kernels, and too high for bfloat16.
    """
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = to_tensors(batch, torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model.of_batch(inputs)
    total = sum(size for place, size in kept.items() if place not in parameters)
    del outputs  # not before: storages that are free again would be counted as one
    return total / batch.num_requests


def _sampled(schema: Schema, store: Store, until_us: int) -> list[RequestBatch]:
    positions = store.select(end=until_us)
    if not len(positions):
        remedy = "Set `split.test_from` to a later time."
        raise DataError(Problem(str(store.folder), "requests before the cut", "none", remedy))
    number = min(len(positions), SAMPLED_BATCHES * SAMPLED_REQUESTS)
    chosen = positions[np.linspace(0, len(positions) - 1, number).astype(np.int64)]
    with Reader(store, schema, chosen, SAMPLED_REQUESTS, prefetch=0) as reader:
        return list(reader)


def _counted(model: TableModel, batches: list[RequestBatch]) -> Sample:
    looked_up: dict[str, Counter[int]] = {}
    events = 0

    def note(module: nn.Module, inputs: tuple[RequestTensors]) -> None:
        nonlocal events
        assert isinstance(module, ZeroTokens), "hooked on no other"
        jagged = keyed_ids(inputs[0], module.keys)
        events += sum(len(history.ids) for history in inputs[0].histories.values())
        for key, table in module.keys:
            rows, counts = jagged[key].values().unique(return_counts=True)
            found = looked_up.setdefault(table, Counter())
            found.update(dict(zip(rows.tolist(), counts.tolist(), strict=True)))

    hooks = [module.register_forward_pre_hook(note) for module in model.modules() if isinstance(module, ZeroTokens)]
    flops = sum(executed_flops(model, batch).total for batch in batches)
    for hook in hooks:
        hook.remove()
    return Sample(
        requests=sum(batch.num_requests for batch in batches),
        rows=sum(batch.num_candidates for batch in batches),
        events=events,
        looked_up=looked_up,
        flops=flops,
    )


def _tables(schema: Schema, model: TableModel, sample: Sample, width: int) -> tuple[TableUse, ...]:
    """Each table with the rows of the sample that are looked up most; what is left is taken as evenly spread."""
    keys = [key for module in model.modules() if isinstance(module, ZeroTokens) for key in module.keys]
    features = Counter(table for _, table in keys)
    tables: list[TableUse] = []
    for table, number in features.items():
        found = sample.looked_up[table]
        total, hot = found.total(), found.most_common(HOT_ROWS)
        tables.append(
            TableUse(
                name=table,
                rows=schema.id_space(table).num_rows,
                width=width,
                features=number,
                lookups=total / sample.requests,
                hot_rows=tuple(row for row, _ in hot),
                hot_shares=tuple(count / total for _, count in hot),
            )
        )
    return tuple(tables)
