"""Checkpoints: tensors as safetensors through torch.distributed.checkpoint, the rest as JSON, committed by rename.

    checkpoints/step-00000500/
        manifest.json        what it belongs to, sha256 and size of every other file
        state.json           reader position, progressive metrics, whether its part of the pass is finished
        *.safetensors        model, tables, both optimizers; one file a rank, loadable by any number of ranks

Nothing is pickled. A folder without a valid manifest is not a checkpoint.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import orjson
import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from eval.artifacts import FileDigest, digests_of, fingerprint, staged_folder, verify_files, write_json
from foundation.data.schema import Schema
from foundation.parallel.column_sums import recut
from foundation.parallel.reduce import of_all_ranks
from foundation.parallel.world import World
from foundation.training.lineage import Growth, Lineage, growth_since
from serving.errors import DamagedError, MismatchError, Problem

MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.json"
FORMAT = 3


class Identity(BaseModel):
    """What a checkpoint belongs to: it is refused everywhere else, but for later days where it has a `lineage`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    schema_digest: str
    data_fingerprint: str
    lineage: Lineage | None = None


class CheckpointManifest(BaseModel):
    """The commit record of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[3]  # without a default: the first checkpoints had none
    step: int
    identity: Identity
    files: dict[str, FileDigest]

    @property
    def digest(self) -> str:
        """sha256 over the files: the teacher's version."""
        return fingerprint(self.files)


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    identity: Identity,
    world: World,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Write a checkpoint of all ranks; it exists when the rename is done, and not before.

    The ranks meet in `group`; in the default one if None.
    """
    target = folder / f"step-{step:08d}"
    if not world.is_first:
        _write_tensors(_broadcast(None, group), tensors, group)
        dist.barrier(group)  # all files are written
        dist.barrier(group)  # the first rank has made the checkpoint of them
        return
    with staged_folder(target) as stage:
        _write_tensors(_broadcast(str(stage), group), tensors, group)
        dist.barrier(group)
        write_json(stage / STATE_FILE, state)
        files = digests_of(stage, exclude=(MANIFEST_FILE,))
        manifest = CheckpointManifest(format=FORMAT, step=step, identity=identity, files=files)
        write_json(stage / MANIFEST_FILE, manifest.model_dump(mode="json"))
    dist.barrier(group)


def list_checkpoints(folder: Path) -> list[Path]:
    """Committed checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / MANIFEST_FILE).is_file())


def set_aside_damaged(folder: Path) -> list[DamagedError]:
    """Rename the newest checkpoints that are not what was written, up to the first that is, to `damaged-step-…`.

    A run then goes on from that one. For one process, before any reads the folder.

    Returns:
        What is wrong with each, the newest first.

    Raises:
        MismatchError: the newest checkpoint that is whole is of another format.
    """
    found: list[DamagedError] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            verify_files(path, read_manifest(path).files)
        except DamagedError as error:
            found.append(error)
            target = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(target, ignore_errors=True)
            path.rename(target)
        else:
            break
    return found


def is_finished(state: dict[str, Any]) -> bool:
    """Whether nothing of its part of the pass was left when a state was saved."""
    return state.get("finished", True)  # earlier states do not say, and were taken for finished


def prune(folder: Path, keep: int, *, always: str | None = None) -> None:
    """Delete all but the newest `keep` checkpoints and the one that is `always` kept."""
    for path in list_checkpoints(folder)[:-keep]:
        if path.name != always:
            shutil.rmtree(path)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The state that was saved beside the tensors; raises MismatchError where it is not what was written."""
    files = read_manifest(checkpoint).files
    verify_files(checkpoint, files, contents=False)
    others = (MANIFEST_FILE, *(name for name in files if name != STATE_FILE))
    verify_files(checkpoint, {STATE_FILE: files[STATE_FILE]}, exclude=others)
    return orjson.loads((checkpoint / STATE_FILE).read_bytes())


def read_manifest(checkpoint: Path) -> CheckpointManifest:
    """The commit record.

    Raises:
        DamagedError: it is missing or not what was written.
        MismatchError: it is of another format.
    """
    path = checkpoint / MANIFEST_FILE
    remedy = "Choose another checkpoint, or train again."
    if not path.is_file():
        raise DamagedError(Problem(str(path), "a committed checkpoint", "no manifest", remedy))
    try:
        content = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DamagedError(Problem(str(path), "a checkpoint manifest", str(error), remedy)) from error
    try:
        return CheckpointManifest.model_validate(content)
    except ValidationError as error:
        ours = isinstance(content, dict) and content.get("format") == FORMAT
        kind = DamagedError if ours else MismatchError
        raise kind(Problem(str(path), "a checkpoint manifest", str(error).splitlines()[0], remedy)) from error


def check_identity(
    checkpoint: Path, manifest: CheckpointManifest, expected: Identity, *, grown: Schema | None = None
) -> Growth:
    """Refuse a checkpoint of another store, schema or run.

    Args:
        checkpoint: its folder.
        manifest: its commit record.
        expected: what it must belong to.
        grown: if given, an earlier day of the same training will do too, as `growth_since` says: with other data, which
            the reader then holds against what was read, and with this schema.

    Returns:
        How many values were added to each table since.
    """
    saved = manifest.identity
    if saved.run == expected.run:
        return {}
    if grown is not None and saved.lineage is not None and expected.lineage is not None:
        return growth_since(saved.lineage, expected.lineage, grown, where=str(checkpoint))
    what = {
        "data_fingerprint": "the request store it was trained on; `prepare` made another one since",
        "schema_digest": "the schema of the project file; tables, features, surfaces or objectives were changed since",
        "run": "the same model, training settings, seed and split; the project file was changed since",
    }
    differing = [name for name in what if getattr(saved, name) != getattr(expected, name)]
    if len(differing) > 1:
        differing = [name for name in differing if name != "run"]  # it covers the other two, and says nothing more
    problems = [
        Problem(
            where=f"{checkpoint / MANIFEST_FILE}: identity.{name}",
            expected=f"{getattr(expected, name)[:12]}, {what[name]}",
            got=getattr(saved, name)[:12],
            remedy="Restore what was changed, or start again with `gemcut train --fresh`.",
        )
        for name in differing
    ]
    raise MismatchError(problems)


def load_checkpoint(
    checkpoint: Path, *, tensors: dict[str, Tensor], growth: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Read a checkpoint into `tensors` in place, after verifying every file, and return its state.

    Args:
        checkpoint: its folder.
        tensors: by name, spread over any number of ranks.
        growth: rows that a table has at its end beyond those that were saved, by table; they are left as they are.

    Raises:
        MismatchError: a file is missing, truncated or changed, or the tensors are not the ones that were saved.
    """
    manifest = read_manifest(checkpoint)
    verify_files(checkpoint, manifest.files)
    reader = HuggingFaceStorageReader(str(checkpoint))
    found = reader.read_metadata().state_dict_metadata
    saved = set(found)
    ours = set[str]().union(*of_all_ranks(list(tensors)))  # a rank has the optimizer's state of its own tables alone
    if saved != ours:
        odd = sorted(saved ^ ours)
        raise MismatchError(
            Problem(
                where=str(checkpoint),
                expected=f"the model's {len(ours)} tensors",
                got=f"{len(saved)} tensors; the first of {len(odd)} that differ is {odd[0]}",
                remedy="The checkpoint is of another model: restore the project file it was made with.",
            )
        )
    sizes = {name: entry.size for name, entry in found.items() if isinstance(entry, TensorStorageMetadata)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice to use DTensor, which is TorchRec's to take
        recut_names = _sums_of_other_columns(tensors, sizes)
        alike = {name: tensor for name, tensor in tensors.items() if name not in recut_names}
        _check_sizes(checkpoint, sizes, alike, growth=growth or {})
        as_saved = {name: torch.empty(sizes[name]) for name in recut_names}
        dcp.load(alike | as_saved, storage_reader=reader, planner=_LoadFirstRows())
        if recut_names:
            _fill_recut(tensors, as_saved, recut_names)
    return orjson.loads((checkpoint / STATE_FILE).read_bytes())


def _sums_of_other_columns(tensors: Mapping[str, Tensor], saved: Mapping[str, torch.Size]) -> dict[str, int]:
    """Rows of each table whose AdaGrad sums were saved for another cut by columns, by the sums' name."""
    found: dict[str, int] = {}
    for name, tensor in tensors.items():
        weights = f"model.{name.removeprefix('table_optimizer.').rpartition('.weight.')[0]}.weight"
        if not name.startswith("table_optimizer.") or weights not in saved or saved[name] == tensor.size():
            continue
        num_rows = saved[weights][0]
        if tensors[weights].size(0) == num_rows and not saved[name][0] % num_rows and not tensor.size(0) % num_rows:
            found[name] = num_rows
    return found


def _fill_recut(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor], num_rows: Mapping[str, int]) -> None:
    from foundation.parallel.shards import local_shards  # a checkpoint can be looked at without TorchRec

    for name, rows in num_rows.items():
        sums = recut(saved[name], rows, tensors[name].size(0) // rows)
        for shard in local_shards({name: tensors[name]}):
            first = shard.offsets[0]
            shard.tensor.copy_(sums[first : first + len(shard.tensor)])


class _LoadFirstRows(DefaultLoadPlanner):
    """Loads what was saved into the beginning of tensors that may be larger; torch's own wants equal sizes."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict, metadata, is_coordinator)
        assert self.metadata is not None, "a storage reader has metadata"
        entries = {
            name: replace(entry, size=self.state_dict[name].size())
            if isinstance(entry, TensorStorageMetadata) and name in self.state_dict
            else entry
            for name, entry in self.metadata.state_dict_metadata.items()
        }
        self.metadata = replace(self.metadata, state_dict_metadata=entries)


def _check_sizes(
    checkpoint: Path, saved: Mapping[str, torch.Size], tensors: Mapping[str, Tensor], *, growth: Mapping[str, int]
) -> None:
    """Refuse tensors of other sizes than those that were saved, but for the rows that were added to tables."""
    from foundation.model.embedding import module_name  # brings TorchRec, which takes seconds

    problems: list[Problem] = []
    for name, tensor in tensors.items():
        size = list(tensor.size())
        added = sum(number for table, number in growth.items() if module_name(table) in name.split("."))
        if added:
            size[0] -= added
        if list(saved[name]) != size:
            got = f"{list(saved[name])}"
            remedy = "The checkpoint is of another model: restore the project file it was made with."
            problems.append(Problem(f"{checkpoint}: {name}", f"a tensor of {size}", got, remedy))
    if problems:
        raise MismatchError(problems)


def _write_tensors(folder: str, tensors: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            writer = HuggingFaceStorageWriter(folder, save_distributed=True)
            dcp.save(dict(tensors), storage_writer=writer, process_group=group)
        except CheckpointException as error:  # no Exception by its class; what a disk said is somewhere in it
            said = [failure for failure, _ in error.failures.values() if isinstance(failure, Exception)]
            raise min(said, key=lambda failure: not isinstance(failure, OSError), default=error) from error


def _broadcast(value: str | None, group: dist.ProcessGroup | None) -> str:
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group)
    assert box[0] is not None, "rank 0 sends the folder"
    return box[0]
