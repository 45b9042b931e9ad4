"""What a training of the foundation model is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foundation.config import FoundationConfig
from foundation.data.schema import Schema


@dataclass(frozen=True, slots=True)
class FoundationJob:
    """What to train on, and where to put it.

    Attributes:
        folder: gets `checkpoints/`, `report.json`, `soft_labels/` of rows before the cut, and `soft_labels_from_cut/`.
        until_us: requests before this time are learned from, microseconds since 1970 UTC.
        surfaces: requests of these surfaces only; of every one if None.
        cut_us: where the training period ends and a checkpoint stays, at most `until_us`, which it is if None.
    """

    schema: Schema
    config: FoundationConfig
    store: Path
    folder: Path
    until_us: int
    surfaces: tuple[str, ...] | None = None
    cut_us: int | None = None

    @property
    def cut(self) -> int:
        """The training cut."""
        return self.until_us if self.cut_us is None else self.cut_us
