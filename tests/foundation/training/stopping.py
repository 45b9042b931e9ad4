"""Ends a training run after some of its own steps, as a kill would, but in the test's process."""

import pytest

from foundation.training.foundation_model import train_foundation


class StoppedError(Exception):
    """What a test ends a run with."""


def train_and_stop(job, num_steps):
    left = iter(range(num_steps - 1))

    def tell(share, summary):
        if next(left, None) is None:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_foundation(job, progress=tell)
