"""The one training loop, of teacher and students alike: a pass over the log in time order, with checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from foundation.data.batch import RequestBatch
from foundation.goodput.journal import Journal
from foundation.parallel.reduce import any_of_ranks
from foundation.parallel.sharding import Spread
from foundation.training import checkpoint as checkpoints
from foundation.training.ahead import coming
from foundation.training.preemption import Preempted, termination_asked
from foundation.training.rates import Rate, constant
from foundation.training.saver import CheckpointPolicy, Saver
from foundation.training.trainer import Trainer
from foundation.training.visits import Visit, Visits, VisitsPlace
from serving.errors import Problem, UserError

Progress = Callable[[float, str], None]


class Recorder(Protocol):
    """Keeps what a run learns about itself; saved and restored with the model."""

    def record(self, batch: RequestBatch, outputs: Any, loss: Tensor) -> None:
        """Take the batch of a first visit and what the model said of it before it learned."""
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
class StreamReport:
    """What a pass did; times are of this process only, not of the runs it resumed.

    Attributes:
        num_steps: first and second visits.
        num_rows: of first visits.
        num_rows_learned: of all visits.
        num_events: of their histories.
    """

    num_steps: int
    num_rows: int
    num_rows_learned: int
    num_events: int
    seconds: float
    data_wait_seconds: float
    resumed_at_step: int
    checkpoint: str

    @property
    def has_learned(self) -> bool:
        """Whether there was anything left to learn; if not, its times say nothing."""
        return self.num_steps > self.resumed_at_step

    def and_then(self, later: StreamReport) -> StreamReport:
        """Both parts of a pass together."""
        added = ("num_rows", "num_rows_learned", "num_events", "seconds", "data_wait_seconds")
        sums = {name: getattr(self, name) + getattr(later, name) for name in added}
        return replace(later, resumed_at_step=self.resumed_at_step, **sums)


@dataclass(slots=True)
class _Tally:
    """What a pass has done so far; the fields of `StreamReport`."""

    num_rows: int = 0
    num_rows_learned: int = 0
    num_events: int = 0
    data_wait_seconds: float = 0.0

    def add(self, visit: Visit) -> None:
        self.num_rows += visit.batch.num_candidates if visit.is_first else 0
        self.num_rows_learned += visit.batch.num_candidates
        self.num_events += visit.batch.num_events


def learn(
    trainer: Trainer,
    visits: Visits,
    *,
    loss_of: Callable[[Visit, Any], Tensor],
    recorder: Recorder,
    policy: CheckpointPolicy,
    journal: Journal,
    rate: Rate = constant,
    progress: Progress | None = None,
) -> StreamReport:
    """Score and learn every visit once, at learning rates as `rate` says; go on from the newest checkpoint, if any.

    Raises:
        Preempted: a rank got SIGTERM; all have finished the step and saved.
        MismatchError: the newest checkpoint belongs to another store, schema or run.
    """
    step = resumed_at = _resume(trainer, visits, recorder, policy)
    journal.phase("checkpoint")
    tally, started, device = _Tally(), time.perf_counter(), trainer.world.device
    saved_at = resumed_at or -1
    total = max(step + len(visits), 1)
    _check_accumulated(trainer.config.accumulate, total)
    wanted = (False, False)  # to leave, to save: what is asked in the middle of an accumulated step waits for its end
    with Saver(policy, trainer.world) as saver, termination_asked() as asked:

        def save(place: VisitsPlace) -> None:
            nonlocal saved_at
            state = {"visits": visits.state_dict(place), "recorder": recorder.state()}
            state |= {"finished": visits.num_left(place) == 0, "spread": asdict(trainer.sharded.spread)}
            journal.saved(step, stall_s=saver.save(step, trainer.tensors(), state))
            saved_at = step

        for ready in coming(trainer, visits, overlap=trainer.config.parallel.overlap):
            visit = ready.visit
            tally.data_wait_seconds += ready.waited_s
            journal.arrived(step, ready.waited_s, world_size=trainer.world.size)
            trainer.slow_down(rate(step, total))
            outputs, loss = trainer.step(ready.prepared, lambda out, v=visit: loss_of(v, out), scored=visit.is_first)
            step += 1
            tally.add(visit)
            if visit.is_first:
                recorder.record(visit.batch, outputs, loss)
            journal.alive(step)
            wanted = any_of_ranks((wanted[0] or asked(), wanted[1] or saver.is_due(step)), device)
            if trainer.is_between_steps and any(wanted):
                save(ready.place)
                if wanted[0]:
                    saver.wait()
                    raise Preempted(step)
                wanted = (False, False)
            if progress is not None:
                progress(step / total, recorder.summary())
        trainer.step_dense()
        if saved_at != step:
            save(visits.place)
        saver.wait()
    newest = checkpoints.list_checkpoints(policy.folder)[-1].name
    seconds = time.perf_counter() - started
    return StreamReport(step, seconds=seconds, resumed_at_step=resumed_at, checkpoint=newest, **asdict(tally))


def _check_accumulated(accumulate: int, num_batches: int) -> None:
    if accumulate > num_batches:
        expected = f"at most the {num_batches:,} batches of the pass, and far fewer for a model that learns"
        remedy = "Lower it, or `batch_requests`."
        raise UserError(Problem("foundation.training.accumulate", expected, f"{accumulate:,}", remedy))


def _resume(trainer: Trainer, visits: Visits, recorder: Recorder, policy: CheckpointPolicy) -> int:
    found = checkpoints.list_checkpoints(policy.folder)
    if not found:
        recorder.load({})
        return 0
    manifest = checkpoints.read_manifest(found[-1])
    growth = checkpoints.check_identity(found[-1], manifest, policy.identity, grown=policy.grown)
    state = checkpoints.read_state(found[-1])
    visits.load_state_dict(state["visits"])  # refuses a log that does not begin with what was learned
    checkpoints.load_checkpoint(found[-1], tensors=trainer.tensors(), growth=growth)
    trainer.rescale_table_sums(Spread(**state["spread"]).num_table_copies)
    recorder.load(state["recorder"])
    return manifest.step
