"""When and how a pass saves: what is to be kept is copied at once, and written while training goes on."""

from __future__ import annotations

import copy
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import torch.distributed as dist
from torch import Tensor

from foundation.data.schema import Schema
from foundation.parallel.gather import own_copy
from foundation.parallel.reliability import checkpoint_interval
from foundation.parallel.world import World
from foundation.training.checkpoint import Identity, prune, save_checkpoint

ASSUMED_STALL_S = 1.0


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Where and how often to save, and what the checkpoints belong to.

    Attributes:
        every: steps between two saves, or the time between them, where `failures_every_s` is None.
        keep: newest checkpoints that are kept.
        always: name of one that is kept beside them.
        in_background: write while training goes on.
        failures_every_s: mean seconds between failures; saves are then as far apart as `checkpoint_interval` says.
        grown: the schema, where a checkpoint of an earlier day is gone on from, as `check_identity` says.
    """

    folder: Path
    every: int | timedelta
    keep: int
    identity: Identity
    always: str | None = None
    in_background: bool = True
    failures_every_s: float | None = None
    grown: Schema | None = None


class Saver:
    """Saves a pass's checkpoints; at most one is on its way to the disk.

    In the background, it keeps the memory of what it saved for the next save.

    Args:
        policy: where, how often, how.
        world: the ranks, which all save together.
    """

    def __init__(self, policy: CheckpointPolicy, world: World) -> None:
        self.policy, self.world = policy, world
        # Its messages must not meet those of training, which go on in the other thread.
        group = dist.new_group(backend="gloo", timeout=world.timeout)
        assert isinstance(group, dist.ProcessGroup), "every rank is in it"
        self._group = group
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._pending: Future[None] | None = None
        self._taken: dict[str, Tensor] = {}
        self._stall_s, self._saved_s = ASSUMED_STALL_S, time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether this rank would save after so many steps."""
        if self.policy.failures_every_s is not None:
            interval = checkpoint_interval(self._stall_s, self.policy.failures_every_s)
        elif isinstance(self.policy.every, int):
            return step % self.policy.every == 0
        else:
            interval = self.policy.every.total_seconds()
        return time.monotonic() - self._saved_s >= interval

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> float:
        """Take a checkpoint; of all ranks together. Returns the seconds that it stopped training.

        Raises:
            UserError: the disk did not take this one or the one before.
        """
        began = time.monotonic()
        self.wait()
        if self.policy.in_background:
            before = self._taken
            self._taken = {name: cast("Tensor", own_copy(value, before.get(name))) for name, value in tensors.items()}
            self._pending = self._thread.submit(self._write, step, self._taken, copy.deepcopy(state))
        else:
            self._write(step, tensors, state)
        self._saved_s = time.monotonic()
        self._stall_s = self._saved_s - began
        return self._stall_s

    def wait(self) -> None:
        """Until nothing is on its way; raises what went wrong with it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _write(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        policy = self.policy
        save_checkpoint(
            policy.folder,
            step=step,
            tensors=tensors,
            state=state,
            identity=policy.identity,
            world=self.world,
            group=self._group,
        )
        if self.world.is_first:
            prune(policy.folder, policy.keep, always=policy.always)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()  # once what is on its way is there
        if kind is None:  # else what ended training says more
            self.wait()
