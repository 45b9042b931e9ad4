"""The `foundation` section of the project file: the model and its training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from foundation.data.schema import Section


class ModelConfig(Section):
    """Sizes of the foundation model."""

    recipe: Literal["gem"] = Field(default="gem", description="Architecture, by name in `foundation/model/recipes.py`.")
    width: int = Field(default=32, ge=4, le=1024, multiple_of=4, description="Width of every embedding and token.")
    encoder_events: int = Field(
        default=64, ge=1, le=16384, description="Newest events of a history that the sequence encoder reads."
    )
    encoder_layers: int = Field(default=1, ge=1, le=32, description="HSTU layers over the history.")
    heads: int = Field(default=2, ge=1, le=64, description="Attention heads.")
    interaction_layers: int = Field(default=2, ge=1, le=32, description="Wukong layers.")
    interaction_tokens: int = Field(default=8, ge=1, le=256, description="Tokens out of a factorisation machine block.")
    hidden: int = Field(default=128, ge=4, le=16384, description="Width of hidden layers.")


class TrainingConfig(Section):
    """One pass over the log in time order."""

    batch_requests: int = Field(
        default=128, ge=1, le=2**31 - 1, description="Requests a step, over all ranks together."
    )
    dense_learning_rate: float = Field(default=1e-3, gt=0, description="AdamW, for everything but the tables.")
    table_learning_rate: float = Field(default=0.05, gt=0, description="Row-wise AdaGrad, for the tables.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    gradient_clip: float = Field(default=1.0, gt=0, description="Largest norm of the dense gradient.")
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Seed of the initial parameters.")
    threads: int = Field(default=1, ge=1, le=1024, description="Threads of one process for torch's operators.")
    checkpoint_every: int = Field(default=500, ge=1, le=2**31 - 1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(default=2, ge=1, le=2**31 - 1, description="Newest checkpoints that are kept.")


class FoundationConfig(Section):
    """The one large model that learns from every surface and objective."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
