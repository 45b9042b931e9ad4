"""Metrics of a stream: each row is scored, then learned from, and its score is counted here.

All sums are integers (losses and probabilities in units of 2^-40), so they do not depend on the order of rows, on the
size of batches or on the number of ranks: merged streams equal the union exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.metrics.entropy import SMALLEST, entropy_of_sums
from eval.metrics.rows import checked_rows, divide

UNIT_BITS = 40
LARGEST_BATCH = 1 << 18
LARGEST_LOGIT = float(np.log1p(-SMALLEST) - np.log(SMALLEST))
BIN_RANGE, BINS_PER_LOGIT = 16, 128
NUM_BINS = 2 * BIN_RANGE * BINS_PER_LOGIT


@dataclass(frozen=True, slots=True)
class StreamMetrics:
    """Metrics of the rows so far; NaN where undefined.

    Attributes:
        num_rows: rows counted.
        num_positives: of them with label 1.
        log_loss: mean, in nats.
        normalized_entropy: log loss over that of the mean label.
        calibration: predicted over actual positives.
        auc: with scores rounded to bins of 1/128 logit, those of one bin counted as ties.
        auc_error: the exact AUC differs from `auc` by at most this.
    """

    num_rows: int
    num_positives: int
    log_loss: float
    normalized_entropy: float
    calibration: float
    auc: float
    auc_error: float


class Stream:
    """Running sums of one objective on one surface.

    Example:
        >>> stream = Stream()
        >>> stream.update([0, 1], [-1.0, 1.0])
        >>> stream.metrics().auc
        1.0
    """

    def __init__(self) -> None:
        self._loss = 0
        self._predicted = 0
        self._negatives = np.zeros(NUM_BINS, dtype=np.int64)
        self._positives = np.zeros(NUM_BINS, dtype=np.int64)

    def update(self, labels: ArrayLike, logits: ArrayLike) -> None:
        """Count rows: labels [N], each 0 or 1, unknown ones masked out by the caller; logits [N], not NaN.

        Logits beyond ±27.6 count as that, which is the clipping of `log_loss`.
        """
        y, z, _ = checked_rows(labels, logits, None)
        for start in range(0, len(y), LARGEST_BATCH):
            self._update(y[start : start + LARGEST_BATCH] == 1, z[start : start + LARGEST_BATCH])

    def _update(self, positive: NDArray[np.bool_], logits: NDArray[np.float64]) -> None:
        z = np.clip(logits, -LARGEST_LOGIT, LARGEST_LOGIT)
        self._loss += _units(np.logaddexp(0.0, np.where(positive, -z, z)))
        self._predicted += _units(np.exp(-np.logaddexp(0.0, -z)))
        bins = np.clip(np.floor((z + BIN_RANGE) * BINS_PER_LOGIT), 0, NUM_BINS - 1).astype(np.int64)
        self._positives += np.bincount(bins[positive], minlength=NUM_BINS)
        self._negatives += np.bincount(bins[~positive], minlength=NUM_BINS)

    def merge(self, other: Stream) -> None:
        """Count the rows of another stream (another rank's) as well."""
        self._loss += other._loss
        self._predicted += other._predicted
        self._negatives += other._negatives
        self._positives += other._positives

    def metrics(self) -> StreamMetrics:
        """Metrics of all rows counted so far."""
        num_positives, num_negatives = int(self._positives.sum()), int(self._negatives.sum())
        num_rows = num_positives + num_negatives
        loss, predicted = self._loss / 2**UNIT_BITS, self._predicted / 2**UNIT_BITS
        pairs = float(num_positives) * float(num_negatives)
        positives, negatives = self._positives.astype(np.float64), self._negatives.astype(np.float64)
        ties = float(positives @ negatives)
        wins = float(positives @ (np.cumsum(negatives) - negatives))
        return StreamMetrics(
            num_rows=num_rows,
            num_positives=num_positives,
            log_loss=float(divide(loss, num_rows)),
            normalized_entropy=float(entropy_of_sums(loss, num_rows, num_positives)),
            calibration=float(divide(predicted, num_positives)),
            auc=float(divide(wins + ties / 2, pairs)),
            auc_error=float(divide(ties / 2, pairs)),
        )

    def state(self) -> dict[str, list[int]]:
        """Everything counted, as lists of integers below 2^63, for a checkpoint or another rank."""
        return {
            "loss": [*divmod(self._loss, 2**UNIT_BITS)],
            "predicted": [*divmod(self._predicted, 2**UNIT_BITS)],
            "negatives": self._negatives.tolist(),
            "positives": self._positives.tolist(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Stream:
        """The stream that wrote `state`.

        Raises:
            ValueError: the state has other bins or other sums.
        """
        expected = {"loss": 2, "predicted": 2, "negatives": NUM_BINS, "positives": NUM_BINS}
        got = {name: len(values) for name, values in state.items()}
        if got != expected:
            raise ValueError(f"expected the state of a stream with lengths {expected}; got {got}")
        stream = cls()
        stream._loss, stream._predicted = (
            int(state[name][0]) * 2**UNIT_BITS + int(state[name][1]) for name in ("loss", "predicted")
        )
        stream._negatives = np.asarray(state["negatives"], dtype=np.int64)
        stream._positives = np.asarray(state["positives"], dtype=np.int64)
        return stream


def _units(values: NDArray[np.float64]) -> int:
    return int(np.rint(values * 2.0**UNIT_BITS).astype(np.int64).sum())
