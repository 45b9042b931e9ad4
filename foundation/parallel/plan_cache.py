"""A plan that was made once: TorchRec's planner takes 0.1 s for 8 ranks and many seconds for a thousand."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError
from torchrec import EmbeddingConfig

from eval.artifacts import write_json
from foundation.config import TablePlacement
from serving.errors import UserError

TablePlan = dict[str, TablePlacement]
"""Where each table is; ranks are places in a sharding group."""

_PLAN: TypeAdapter[TablePlan] = TypeAdapter(TablePlan)


def plan_digest(
    tables: Sequence[EmbeddingConfig], pinned: Mapping[str, TablePlacement], *, group_size: int, device_type: str
) -> str:
    """sha256 of all that a plan depends on: tables, what is pinned, the group, ranks of a node, TorchRec's version."""
    shapes = [(t.name, t.num_embeddings, t.embedding_dim, str(t.data_type), t.feature_names) for t in tables]
    given = {table: placement.model_dump(mode="json") for table, placement in pinned.items()}
    around = [group_size, device_type, os.environ.get("LOCAL_WORLD_SIZE"), metadata.version("torchrec")]
    return hashlib.sha256(orjson.dumps([shapes, given, around], option=orjson.OPT_SORT_KEYS)).hexdigest()


def remembered_plan(folder: Path, digest: str, make: Callable[[], TablePlan]) -> TablePlan:
    """The plan of a digest: out of `folder/DIGEST.json`, or made and kept there for the next start.

    The file says what the section `foundation.parallel.tables` of a project file would, as JSON; a plan is pinned there
    and not here. A file that is not whole is made anew.

    Args:
        folder: several trainings may read and write the same one at once.
        digest: of `plan_digest`.
        make: makes the plan.
    """
    path = folder / f"plan-{digest[:32]}.json"
    try:
        return _PLAN.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        plan = make()
    try:
        write_json(path, _PLAN.dump_python(plan, mode="json"))
    except UserError:
        return plan  # nothing can be kept there, as on a disk that is mounted read-only
    return plan
