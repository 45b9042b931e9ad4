"""The one definition of numeric features: how a raw number becomes the value a model sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

TRANSFORMS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "identity": lambda x: x,
    "log1p": lambda x: np.sign(x) * np.log1p(np.abs(x)),
}


class NumberRule(BaseModel):
    """Raw number to model input: `clip((transform(x) - shift) / scale, -clip, clip)`.

    A missing or non-finite number becomes `missing`, by default 0, that is "average".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    transform: Literal["identity", "log1p"] = Field(
        default="identity", description="`log1p` is sign(x) ln(1 + |x|), for counts and prices."
    )
    shift: float = Field(default=0.0, allow_inf_nan=False, description="Subtracted after the transform.")
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="Divides after the shift.")
    clip: float = Field(default=10.0, gt=0, allow_inf_nan=False, description="Largest absolute value a model sees.")
    missing: float = Field(
        default=0.0, allow_inf_nan=False, description="What a model sees where there is no number; within `clip`."
    )

    @model_validator(mode="after")
    def _missing_is_within_clip(self) -> NumberRule:
        if abs(self.missing) > self.clip:
            raise ValueError(
                f"expected `missing` from -{self.clip:g} to {self.clip:g}, as `clip` says; got {self.missing:g}"
            )
        return self


def encode_numbers(values: NDArray[np.floating], rule: NumberRule) -> NDArray[np.float32]:
    """Model inputs of raw numbers; NaN and infinities count as missing.

    Args:
        values: any shape, float32 or float64, NaN where missing.
        rule: the feature's rule.

    Returns:
        float32 of the same shape, finite, in [-rule.clip, rule.clip].

    Example:
        >>> encode_numbers(np.array([0.0, np.e - 1, np.nan, np.inf]), NumberRule(transform="log1p")).tolist()
        [0.0, 1.0, 0.0, 0.0]
    """
    raw = np.asarray(values, dtype=np.float64)
    known = np.isfinite(raw)
    x = TRANSFORMS[rule.transform](np.where(known, raw, 0.0))
    with np.errstate(over="ignore"):  # beyond float64 is infinite, which clips as it should
        x = np.clip((x - rule.shift) / rule.scale, -rule.clip, rule.clip)
    return np.where(known, x, rule.missing).astype(np.float32)
