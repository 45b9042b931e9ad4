"""Watches the terms of a student's loss: a distillation that silently does nothing is an error, not a result."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from foundation.data.batch import RequestBatch
from serving.errors import Problem, UserError

RECENT_STEPS = 200


class LossRecorder:
    """Losses by term, and how many rows had a soft label. A `foundation.training.stream.Recorder`."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_soft_rows = 0
        self.label: list[Tensor | float] = []
        self.distillation: list[Tensor | float] = []

    @property
    def coverage(self) -> float:
        """Share of the rows that had a soft label."""
        return self.num_soft_rows / max(self.num_rows, 1)

    def count(self, num_rows: int, num_soft_rows: int) -> None:
        """Take the rows of a batch."""
        self.num_rows += num_rows
        self.num_soft_rows += num_soft_rows

    def record(self, batch: RequestBatch, outputs: Any, loss: Tensor) -> None:
        """Nothing: the loss function reports its terms itself."""

    def state(self) -> dict[str, Any]:
        """See `Recorder`."""
        return {
            "num_rows": self.num_rows,
            "num_soft_rows": self.num_soft_rows,
            "label": [float(loss) for loss in self.label],
            "distillation": [float(loss) for loss in self.distillation],
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Recorder`."""
        for name, value in state.items():
            setattr(self, name, value)

    def summary(self) -> str:
        """See `Recorder`."""
        return f"label loss {recent(self.label):.4f}  distillation loss {recent(self.distillation):.4f}"

    def check_alive(self, where: str) -> None:
        """Refuse a distillation that had no effect.

        Raises:
            UserError: no row had a soft label, or the loss was the same on each of the newest steps.
        """
        losses = np.array([float(loss) for loss in self.distillation[-RECENT_STEPS:]])
        remedy = "Check that the soft labels are this placement's rows and objectives, or turn the channel off."
        if self.num_soft_rows == 0:
            got = f"none of {self.num_rows:,} rows with one"
            raise UserError(Problem(where, "rows with a soft label", got, remedy))
        if len(losses) > 1 and (not np.isfinite(losses).all() or np.ptp(losses) == 0):
            got = f"{losses[-1]:g} on {len(losses):,} steps"
            raise UserError(Problem(where, "a distillation loss that is finite and moves", got, remedy))


def recent(losses: list[Tensor | float]) -> float:
    """Mean of the newest losses; NaN if there is none."""
    newest = [float(loss) for loss in losses[-RECENT_STEPS:]]
    return sum(newest) / len(newest) if newest else float("nan")
