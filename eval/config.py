"""The `tracking` section of the project file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TrackingConfig(BaseModel):
    """Where the evidence goes: MLflow."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str | None = Field(
        default=None,
        description="MLflow tracking URI; `MLFLOW_TRACKING_URI` if absent, else sqlite in the work folder.",
    )
    experiment: str | None = Field(default=None, description="MLflow experiment; the project's name if absent.")
