"""Down-sampled negatives: from the probability among the rows that a log kept to that among all rows, and back."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from foundation.data.schema import Schema


def corrections(schema: Schema, objectives: tuple[str, ...]) -> tuple[float, ...]:
    """What is added to the log odds of each objective: log(`negatives_kept`).

    Where a share r of the rows with label 0 is kept, odds among the kept rows are 1 / r times those among all.

    Source: logistic regression on case-control samples; He et al. 2014, "Practical lessons from predicting clicks on
    ads at Facebook", section 6.3, in log odds.
    """
    return tuple(math.log(schema.objectives[name].negatives_kept) for name in objectives)


def with_odds(probabilities: NDArray[Any], factor: float) -> NDArray[Any]:
    """Probabilities whose odds are `factor` times as high; `negatives_kept` leads to all rows, its inverse back.

    Example:
        >>> import numpy as np
        >>> with_odds(np.array([0.5]), 0.25).tolist()
        [0.2]
    """
    return probabilities * factor / (1 + probabilities * (factor - 1))
