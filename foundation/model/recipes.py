"""Architectures by the name that the project file gives them; their sizes are `foundation.config.RECIPE_SIZES`."""

from __future__ import annotations

from collections.abc import Callable

from foundation.config import ModelConfig
from foundation.data.schema import Schema
from foundation.model.dcnv2 import Dcnv2Model
from foundation.model.din import DinModel
from foundation.model.embedding import TableModel
from foundation.model.gem import GemModel

RECIPES: dict[str, Callable[[Schema, ModelConfig], TableModel]] = {
    "gem": GemModel,
    "fast": GemModel,
    "dcnv2": Dcnv2Model,
    "din": DinModel,
}
