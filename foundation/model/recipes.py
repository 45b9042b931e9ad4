"""Architectures by the name that the project file gives them."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from foundation.config import ModelConfig
from foundation.data.schema import Schema
from foundation.model.gem import GemModel

RECIPES: dict[str, Callable[[Schema, ModelConfig], nn.Module]] = {
    "gem": GemModel,
}
