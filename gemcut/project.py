"""The project file: one YAML document, read into frozen models; each package owns its section's model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import orjson
from pydantic import Field

from eval.config import TrackingConfig
from foundation.config import FoundationConfig
from foundation.data.schema import Name, Schema, Split
from transfer.config import Placement


class Project(Schema):
    """Everything a gemcut command needs to know; the whole project file.

    Paths are relative to the project file's folder.
    """

    name: Name = Field(description="Name of the project; also the MLflow experiment unless `tracking` says otherwise.")
    workdir: str = Field("work", description="Folder that everything is written under.")
    split: Split
    foundation: FoundationConfig = Field(default_factory=FoundationConfig)
    placements: dict[Name, Placement] = Field(min_length=1, description="One student each.")
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)
