"""The one training loop, of teacher and students alike: a pass over the reader in time order, with checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from foundation.data.batch import RequestBatch
from foundation.data.reader import Reader
from foundation.model.inputs import to_tensors
from foundation.training import checkpoint as checkpoints
from foundation.training.checkpoint import Identity
from foundation.training.trainer import Trainer

Progress = Callable[[float, str], None]


class Recorder(Protocol):
    """Keeps what a run learns about itself; saved and restored with the model."""

    def record(self, batch: RequestBatch, outputs: Any, loss: Tensor) -> None:
        """Take a batch and what the model said of it before it learned."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON-able state; whatever is on disk is flushed first."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        ...

    def summary(self) -> str:
        """A few words for the progress line."""
        ...


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Where and how often to save, and what the checkpoints belong to."""

    folder: Path
    every_steps: int
    keep: int
    identity: Identity


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What a pass did; times are of this process only, not of the runs it resumed."""

    num_steps: int
    num_rows: int
    seconds: float
    data_wait_seconds: float
    resumed_at_step: int
    checkpoint: str


def learn(
    trainer: Trainer,
    reader: Reader,
    *,
    loss_of: Callable[[RequestBatch, Any], Tensor],
    recorder: Recorder,
    policy: CheckpointPolicy,
    cooldown: float = 0.0,
    progress: Progress | None = None,
) -> StreamReport:
    """Score and learn every batch once; go on from the newest checkpoint if there is one.

    Over the last `cooldown` of the pass, in [0, 1], the learning rates fall linearly to zero: what the newest batches
    happened to hold then weighs no more than the others.

    Raises:
        MismatchError: the newest checkpoint belongs to another store, schema or run.
    """
    step = resumed_at = _resume(trainer, reader, recorder, policy)
    num_rows, wait, started = 0, 0.0, time.perf_counter()
    saved_at = resumed_at or -1
    total = max(step + len(reader), 1)
    batches = iter(reader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        wait += time.perf_counter() - asked
        if batch is None:
            break
        if cooldown and step >= (1 - cooldown) * total:
            trainer.slow_down((total - step) / (cooldown * total))
        outputs, loss = trainer.step(to_tensors(batch, trainer.world.device), lambda out, b=batch: loss_of(b, out))
        recorder.record(batch, outputs, loss)
        step, num_rows = step + 1, num_rows + batch.num_candidates
        if step % policy.every_steps == 0:
            _save(trainer, reader, recorder, policy, step)
            saved_at = step
        if progress is not None:
            progress(step / total, recorder.summary())
    if saved_at != step:
        _save(trainer, reader, recorder, policy, step)
    seconds = time.perf_counter() - started
    newest = checkpoints.list_checkpoints(policy.folder)[-1].name
    return StreamReport(step, num_rows, seconds, wait, resumed_at, newest)


def _resume(trainer: Trainer, reader: Reader, recorder: Recorder, policy: CheckpointPolicy) -> int:
    found = checkpoints.list_checkpoints(policy.folder)
    if not found:
        recorder.load({})
        return 0
    manifest = checkpoints.read_manifest(found[-1])
    checkpoints.check_identity(found[-1], manifest, policy.identity)
    state = checkpoints.load_checkpoint(found[-1], tensors=trainer.tensors())
    reader.load_state_dict(state["reader"])
    recorder.load(state["recorder"])
    return manifest.step


def _save(trainer: Trainer, reader: Reader, recorder: Recorder, policy: CheckpointPolicy, step: int) -> None:
    checkpoints.save_checkpoint(
        policy.folder,
        step=step,
        tensors=trainer.tensors(),
        state={"reader": reader.state_dict(), "recorder": recorder.state()},
        identity=policy.identity,
        world=trainer.world,
    )
    if trainer.world.is_first:
        checkpoints.prune(policy.folder, policy.keep)
