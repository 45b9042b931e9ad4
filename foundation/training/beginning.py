"""What a model begins with, by the rows of its pass: read once, and kept for the next start."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import orjson
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eval.artifacts import write_file
from foundation.data.batch import Int64Array
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.data.verified import cache_of
from foundation.training.prior import first_log_odds, number_edges
from serving.errors import UserError

VERSION = 1
"""Of what is kept for the same store, schema and pass: to be raised where code changes it."""
KEPT = 8


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where heads and bins start.

    Attributes:
        log_odds: [K] float32, as `first_log_odds` has them.
        request_edges, candidate_edges: float64, as `number_edges` has them.
    """

    log_odds: Tensor
    request_edges: Tensor
    candidate_edges: Tensor


def beginning(store: Store, schema: Schema, positions: Int64Array, until_us: int) -> Beginning:
    """Of a pass over these requests, whose labels count if they were settled at `until_us`.

    To read a few requests everywhere is to read nearly all of a store, so it is kept in `cache_of(store.folder)`.
    """
    content = [VERSION, store.fingerprint, schema.schema_digest(), until_us]
    key = hashlib.sha256(orjson.dumps(content) + positions.astype("<i8").tobytes()).hexdigest()[:32]
    path = cache_of(store.folder) / f"beginning-{key}.safetensors"
    if (kept := _kept(path)) is not None:
        return kept
    log_odds = first_log_odds(store, schema, positions, until_us)
    found = Beginning(log_odds, *number_edges(store, schema, positions))
    _keep(path, found)
    return found


def _kept(path: Path) -> Beginning | None:
    """One that was kept; one that is not whole is as good as none."""
    try:
        with safe_open(path, framework="pt") as file:
            found = Beginning(**{field.name: file.get_tensor(field.name) for field in fields(Beginning)})
            return found if file.metadata() == _about(found) else None
    except (OSError, SafetensorError):
        return None


def _keep(path: Path, found: Beginning) -> None:
    """Where it can not be written, as beside a store that is mounted read-only, nothing is kept."""
    try:
        write_file(path, save(asdict(found), metadata=_about(found)))
        kept = sorted(path.parent.glob("beginning-*.safetensors"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, UserError):
        return


def _about(found: Beginning) -> dict[str, str]:
    content = b"".join(part.numpy().tobytes() for part in asdict(found).values())
    return {"sha256": hashlib.sha256(content).hexdigest()}
