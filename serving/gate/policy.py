"""A placement's limits: what a student must keep to be shipped."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Budget(BaseModel):
    """The latency limit of a placement, and how it is judged.

    PASS means: with probability `confidence`, at least `percentile` of requests that arrive at `rate_per_s` are
    answered within `limit_ms`, counted from their scheduled arrival.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit_ms: float = Field(gt=0, description="Latency limit in milliseconds.")
    percentile: float = Field(default=0.99, gt=0, lt=1, description="Share of requests that must keep the limit.")
    confidence: float = Field(default=0.95, gt=0, lt=1, description="Probability that a PASS is right at the edge.")
    rate_per_s: float = Field(gt=0, description="Mean rate of the Poisson arrivals.")
    candidates: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Candidates of every measured request; drawn from the placement's own log if absent.",
    )
    min_duration_s: float = Field(default=5.0, ge=0, description="Shortest measured period.")
    max_duration_s: float = Field(
        default=60.0, gt=0, description="The measurement ends here even if undecided: INVALID."
    )

    @model_validator(mode="after")
    def _durations_in_order(self) -> Budget:
        if self.min_duration_s > self.max_duration_s:
            most, got = self.max_duration_s, self.min_duration_s
            raise ValueError(f"expected min_duration_s of at most max_duration_s = {most:g}; got {got:g}")
        return self
