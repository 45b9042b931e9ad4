"""What a run of the foundation model learns about itself: metrics and soft labels of rows that it has yet to learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from eval.progressive import Stream, StreamMetrics
from foundation.data.batch import Float32Array, RequestBatch
from foundation.parallel.reduce import of_all_ranks
from foundation.parallel.world import World
from foundation.soft_labels import NOTHING_LEARNED, SoftLabelWriter, sort_parts
from foundation.training.job import FoundationJob
from foundation.training.labels import counted_labels
from serving.errors import Problem, UserError

FORGETTING_STEPS = 200
BEFORE_CUT, FROM_CUT = "before_cut", "from_cut"
LABELS = {BEFORE_CUT: "soft_labels", FROM_CUT: "soft_labels_from_cut"}


class ProgressiveRecorder:
    """Progressive metrics by period and objective, and the progressive soft labels of the job's last period."""

    def __init__(self, job: FoundationJob, world: World) -> None:
        self.schema, self.objectives = job.schema, tuple(job.schema.objectives)
        self.until_us, self.cut_us, self.folder = job.until_us, job.cut, job.folder
        self.period = FROM_CUT if job.until_us > job.cut else BEFORE_CUT
        self.labels = SoftLabelWriter(job.folder / LABELS[self.period], self.objectives, rank=world.rank)
        self.num_parts_before_cut: int | None = None
        self.is_first = world.is_first
        self.exists = job.schema.head_exists()
        self.streams = self._no_streams()
        self.learned_to = NOTHING_LEARNED
        self.recent_loss = 0.0

    def record(self, batch: RequestBatch, outputs: Tensor, loss: Tensor) -> None:
        """Count a batch's scores, made before it was learned from."""
        logits = outputs.detach().cpu().numpy()
        self._check_finite(batch, logits)
        cutoffs = np.full(batch.num_candidates, self.learned_to, dtype=np.int64)
        self.labels.add(batch.row_ids, cutoffs, logits)
        labels = counted_labels(batch, self.schema)
        for place, name in enumerate(self.objectives):
            known = np.isfinite(labels[:, place]) & np.isfinite(logits[:, place])
            self.streams[self.period][name].update(labels[known, place], logits[known, place])
        self.learned_to = max(of_all_ranks(int(batch.times.max(initial=self.learned_to))))
        share = 1 / FORGETTING_STEPS
        self.recent_loss += (float(loss) - self.recent_loss) * (share if self.recent_loss else 1.0)

    def _check_finite(self, batch: RequestBatch, logits: Float32Array) -> None:
        """NaN means "no head" further on, so a model that diverged must not get that far."""
        exists = np.repeat(self.exists[batch.surfaces], np.diff(batch.candidate_offsets), axis=0)
        bad = exists & ~np.isfinite(logits)
        if bad.any():
            objective = self.objectives[int(np.flatnonzero(bad.any(axis=0))[0])]
            raise UserError(
                Problem(
                    where=f"training: objective {objective}, from request {int(batch.positions[0])} of the store on",
                    expected="finite scores",
                    got=f"{int(bad.sum()):,} that are no numbers: the model has diverged",
                    remedy="Lower the learning rates of `foundation.training`, and start again with --fresh.",
                )
            )

    def metrics(self, period: str) -> dict[str, StreamMetrics]:
        """Of all rows of a period and all ranks so far, by objective."""
        return {name: stream.metrics() for name, stream in self._merged()[period].items()}

    def state(self) -> dict[str, Any]:
        """See `Recorder`."""
        self.labels.flush()
        return {
            "until_us": self.until_us,
            "cut_us": self.cut_us,
            "period": self.period,
            "num_parts": self.labels.num_parts,
            "num_parts_before_cut": self.num_parts_before_cut,
            "streams": {
                period: {name: stream.state() for name, stream in streams.items()}
                for period, streams in self._merged().items()
            },
            "learned_to": self.learned_to,
            "recent_loss": self.recent_loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Recorder`."""
        num_parts = state.get("num_parts", 0)
        has_moved = state.get("cut_us", self.cut_us) != self.cut_us  # then all so far was before it
        told_apart = state.get("period") == FROM_CUT and not has_moved
        num_before_cut = state["num_parts_before_cut"] if told_apart else num_parts
        self.num_parts_before_cut = num_before_cut if self.period == FROM_CUT else None
        if self.is_first:
            folders = {period: self.folder / name for period, name in LABELS.items()}
            sort_parts(folders[BEFORE_CUT], folders[FROM_CUT], num_before=num_before_cut, num_parts=num_parts)
        self.labels.rewind(num_parts, first=self.num_parts_before_cut or 0)
        self.streams = self._no_streams()
        if not state:
            return
        self.learned_to, self.recent_loss = state["learned_to"], state["recent_loss"]
        if self.is_first:  # it counts for all ranks so far
            for period, streams in state["streams"].items():
                for name, content in streams.items():
                    self.streams[BEFORE_CUT if has_moved else period][name].merge(Stream.from_state(content))

    def summary(self) -> str:
        """See `Recorder`."""
        first = self.objectives[0]
        metrics = self.streams[self.period][first].metrics()
        return f"loss {self.recent_loss:.4f}  {first} NE {metrics.normalized_entropy:.4f} AUC {metrics.auc:.4f}"

    def _no_streams(self) -> dict[str, dict[str, Stream]]:
        return {period: {name: Stream() for name in self.objectives} for period in LABELS}

    def _merged(self) -> dict[str, dict[str, Stream]]:
        merged = self._no_streams()
        for periods in of_all_ranks(self.streams):
            for period, streams in periods.items():
                for name, stream in streams.items():
                    merged[period][name].merge(stream)
        return merged
