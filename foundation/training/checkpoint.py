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
from pathlib import Path
from typing import Any, Literal

import orjson
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from eval.artifacts import FileDigest, digests_of, fingerprint, staged_folder, verify_files, write_json
from foundation.parallel.world import World
from serving.errors import DamagedError, MismatchError, Problem

MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.json"
FORMAT = 2


class Identity(BaseModel):
    """What a checkpoint belongs to: it is refused everywhere else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    schema_digest: str
    data_fingerprint: str


class CheckpointManifest(BaseModel):
    """The commit record of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2]  # without a default: the first checkpoints had none
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


def check_identity(checkpoint: Path, manifest: CheckpointManifest, expected: Identity) -> None:
    """Refuse a checkpoint of another store, schema or run."""
    what = {
        "data_fingerprint": "the request store it was trained on; `prepare` made another one since",
        "schema_digest": "the schema of the project file; tables, features, surfaces or objectives were changed since",
        "run": "the same model, training settings, seed and split; the project file was changed since",
    }
    differing = [name for name, wanted in expected.model_dump().items() if getattr(manifest.identity, name) != wanted]
    if len(differing) > 1:
        differing = [name for name in differing if name != "run"]  # it covers the other two, and says nothing more
    problems = [
        Problem(
            where=f"{checkpoint / MANIFEST_FILE}: identity.{name}",
            expected=f"{getattr(expected, name)[:12]}, {what[name]}",
            got=getattr(manifest.identity, name)[:12],
            remedy="Restore what was changed, or start again with `gemcut train --fresh`.",
        )
        for name in differing
    ]
    if problems:
        raise MismatchError(problems)


def load_checkpoint(checkpoint: Path, *, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Read a checkpoint into `tensors` in place, after verifying every file, and return its state.

    Raises:
        MismatchError: a file is missing, truncated or changed, or the tensors are not the ones that were saved.
    """
    manifest = read_manifest(checkpoint)
    verify_files(checkpoint, manifest.files)
    reader = HuggingFaceStorageReader(str(checkpoint))
    saved = set(reader.read_metadata().state_dict_metadata)
    if saved != set(tensors):
        odd = sorted(saved ^ set(tensors))
        raise MismatchError(
            Problem(
                where=str(checkpoint),
                expected=f"the model's {len(tensors)} tensors",
                got=f"{len(saved)} tensors; the first of {len(odd)} that differ is {odd[0]}",
                remedy="The checkpoint is of another model: restore the project file it was made with.",
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(dict(tensors), storage_reader=reader)
    return orjson.loads((checkpoint / STATE_FILE).read_bytes())


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
