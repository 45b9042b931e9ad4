"""The `placements` section of the project file: one small student each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from foundation.data.schema import Schema, Section
from serving.gate.policy import Budget


class StudentConfig(Section):
    """Sizes of a student, and its training."""

    width: int = Field(default=8, ge=4, le=512, multiple_of=4, description="Width of every embedding.")
    history: int = Field(
        default=50,
        ge=1,
        le=4096,
        description="Newest events of each log that the student reads, within the log's limit.",
    )
    hidden: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        default=(64, 32), min_length=1, description="Widths of the hidden layers."
    )
    batch_requests: int = Field(default=64, ge=1, le=2**31 - 1, description="Requests a step.")
    dense_learning_rate: float = Field(default=1e-3, gt=0, description="AdamW, for everything but the tables.")
    table_learning_rate: float = Field(default=0.05, gt=0, description="Row-wise AdaGrad, for the tables.")
    cooldown: float = Field(
        default=0.1, ge=0, le=1, description="Last share of the pass over which both learning rates fall to zero."
    )

    def history_limits(self, schema: Schema) -> dict[str, int]:
        """Events that the student reads, by log."""
        return {log: min(self.history, events.limit) for log, events in schema.data.events.items()}


class SoftLabelConfig(Section):
    """Distillation on the teacher's scores through an auxiliary head that is never exported (ExFM's auxiliary head)."""

    weight: float = Field(default=1.0, ge=0, description="Weight w of the distillation loss.")
    gradient_scale: float = Field(
        default=1.0, ge=0, description="Factor beta on the auxiliary head's gradient into the backbone."
    )
    label_scale: float = Field(
        default=1.0, ge=1, description="Factor alpha on the soft label; the product is clipped at 1."
    )


class TransferConfig(Section):
    """What the teacher gives a student. Soft labels are on by default; `soft_labels: null` turns them off."""

    soft_labels: SoftLabelConfig | None = Field(default_factory=SoftLabelConfig)


class Placement(Section):
    """The slot one value model serves: a surface, objectives, a budget."""

    surface: str = Field(description="One of `surfaces`.")
    objectives: tuple[str, ...] = Field(min_length=1, description="Names of `objectives` that exist on the surface.")
    student: StudentConfig = Field(default_factory=StudentConfig)
    transfer: TransferConfig = Field(default_factory=TransferConfig)
    budget: Budget
