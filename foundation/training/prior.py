"""Where a model starts: heads at the log odds of the first rows, bins of numbers at the quantiles of a sample."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import orjson
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eval.artifacts import write_file
from foundation.data.batch import Int64Array
from foundation.data.reader import Reader
from foundation.data.schema import Schema, numbers_of
from foundation.data.store import Store
from foundation.data.verified import cache_of
from foundation.model.conditional import products_of
from foundation.training.labels import settled_labels
from serving.errors import UserError

PRIOR_REQUESTS = 1024
SAMPLE_REQUESTS = 4096
SAMPLE_VERSION = 1
"""Of what `number_sample` gives for the same store, schema and positions: to be raised where code changes that."""
KEPT_SAMPLES = 8


def first_log_odds(
    store: Store, schema: Schema, positions: Int64Array, until_us: int, *, objectives: tuple[str, ...] | None = None
) -> Tensor:
    """Log odds of each objective's label among the first requests of a pass; of a product, where the other came true.

    Two made-up rows, one of each label, keep them finite. The scores of these very requests know their mean label, one
    number an objective, and nothing else of them.

    Args:
        store: an open store.
        schema: whose objectives are counted.
        positions: [N] int64, the requests of the pass.
        until_us: the training cut; labels that were not settled then do not count.
        objectives: those that a model has, of which a product may be made; all of the schema's if absent.

    Returns:
        [K] float32.
    """
    none = dict.fromkeys(schema.data.events, 0)
    with Reader(store, schema, positions[:PRIOR_REQUESTS], PRIOR_REQUESTS, history_limits=none, prefetch=0) as reader:
        labels = np.concatenate(
            [np.zeros((0, len(schema.objectives)), np.float32)]
            + [settled_labels(batch, schema, until_us) for batch in reader]
        )
    names = tuple(schema.objectives)
    for place, given in products_of(schema, names):
        if objectives is None or {names[place], names[given]} <= set(objectives):
            labels[labels[:, given] != 1, place] = np.nan
    positives = 1 + (labels == 1).sum(axis=0)
    negatives = 1 + (labels == 0).sum(axis=0)
    return torch.from_numpy(np.log(positives / negatives).astype(np.float32))


def number_sample(store: Store, schema: Schema, positions: Int64Array) -> tuple[Tensor, Tensor]:
    """Numbers of requests spread evenly over a pass, by which a model places its bins.

    No label is looked at. Early scores know what range the features of later rows have, and nothing else of them. To
    read a few requests everywhere is to read nearly all of a store, so the sample is kept in `cache_of(store.folder)`.

    Returns:
        ([S, F] of the requests, [S', F'] of their candidates) float32, both of at least one row: zeros if there is no
        request.
    """
    spread = positions[:: max(1, len(positions) // SAMPLE_REQUESTS)]
    path = cache_of(store.folder) / f"numbers-{_sample_key(store, schema, spread)}.safetensors"
    if (kept := _kept_sample(path)) is not None:
        return kept
    sample = _read_sample(store, schema, spread)
    _keep_sample(path, sample)
    return sample


def _read_sample(store: Store, schema: Schema, spread: Int64Array) -> tuple[Tensor, Tensor]:
    none = dict.fromkeys(schema.data.events, 0)
    with Reader(store, schema, spread, len(spread) + 1, history_limits=none, prefetch=0) as reader:
        batch = next(iter(reader), None)
    if batch is None:
        groups = (schema.request_features(), schema.candidate_features())
        request, candidate = (torch.zeros(1, len(numbers_of(features))) for features in groups)
        return request, candidate
    return torch.from_numpy(batch.numbers), torch.from_numpy(batch.candidate_numbers)


def _sample_key(store: Store, schema: Schema, spread: Int64Array) -> str:
    content = [SAMPLE_VERSION, store.fingerprint, schema.schema_digest()]
    return hashlib.sha256(orjson.dumps(content) + spread.astype("<i8").tobytes()).hexdigest()[:32]


def _kept_sample(path: Path) -> tuple[Tensor, Tensor] | None:
    """A sample that was kept; one that is not whole is as good as none."""
    try:
        with safe_open(path, framework="pt") as file:
            sample = file.get_tensor("request"), file.get_tensor("candidate")
            return sample if file.metadata() == _about(sample) else None
    except (OSError, SafetensorError):
        return None


def _keep_sample(path: Path, sample: tuple[Tensor, Tensor]) -> None:
    """Where it can not be written, as beside a store that is mounted read-only, nothing is kept."""
    request, candidate = (part.contiguous() for part in sample)
    try:
        write_file(path, save({"request": request, "candidate": candidate}, metadata=_about(sample)))
        kept = sorted(path.parent.glob("numbers-*.safetensors"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-KEPT_SAMPLES]:
            old.unlink(missing_ok=True)
    except (OSError, UserError):
        return


def _about(sample: tuple[Tensor, Tensor]) -> dict[str, str]:
    content = b"".join(part.contiguous().numpy().tobytes() for part in sample)
    return {"sha256": hashlib.sha256(content).hexdigest()}
