"""The stream's sums equal the metrics of all rows, whatever the batches, ranks and restarts."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from eval.metrics.calibration import calibration
from eval.metrics.entropy import log_loss, normalized_entropy
from eval.metrics.ranking import auc
from eval.progressive import Stream


def sample(num_rows: int, *, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(-2, 2, num_rows)
    probabilities = 1 / (1 + np.exp(-logits))
    return (generator.random(num_rows) < probabilities).astype(np.int64), logits, probabilities


def test_a_stream_equals_the_metrics_of_all_rows() -> None:
    labels, logits, probabilities = sample(20_000)
    stream = Stream()
    for start in range(0, len(labels), 777):
        stream.update(labels[start : start + 777], logits[start : start + 777])
    metrics = stream.metrics()
    assert (metrics.num_rows, metrics.num_positives) == (20_000, labels.sum())
    assert metrics.log_loss == pytest.approx(log_loss(labels, probabilities), rel=1e-9)
    assert metrics.normalized_entropy == pytest.approx(normalized_entropy(labels, probabilities), rel=1e-9)
    assert metrics.calibration == pytest.approx(calibration(labels, probabilities), rel=1e-9)
    assert abs(metrics.auc - auc(labels, logits)) <= metrics.auc_error < 0.002


@given(st.integers(0, 300), st.lists(st.integers(0, 300), max_size=4), st.integers(1, 4))
def test_batches_and_ranks_leave_the_state_bitwise_the_same(num_rows: int, cuts: list[int], num_ranks: int) -> None:
    labels, logits, _ = sample(num_rows)
    whole = Stream()
    whole.update(labels, logits)
    merged = Stream()
    for rank in range(num_ranks):
        part = Stream()
        own_labels, own_logits = labels[rank::num_ranks], logits[rank::num_ranks]
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
            part.update(own_labels[start:end], own_logits[start:end])
        merged.merge(part)
    assert merged.state() == whole.state()


def test_the_state_survives_json_and_goes_on() -> None:
    labels, logits, _ = sample(1000)
    whole, first = Stream(), Stream()
    whole.update(labels, logits)
    first.update(labels[:400], logits[:400])
    resumed = Stream.from_state(orjson.loads(orjson.dumps(first.state())))
    resumed.update(labels[400:], logits[400:])
    assert resumed.state() == whole.state()
    assert resumed.metrics() == whole.metrics()


def test_totals_beyond_64_bits_survive() -> None:
    stream = Stream()
    stream.update(np.ones(100, dtype=np.int64), np.full(100, -40.0))
    for _ in range(40):
        stream.merge(Stream.from_state(stream.state()))
    state = Stream.from_state(orjson.loads(orjson.dumps(stream.state())))
    assert state.metrics().num_rows == 100 * 2**40
    assert state.metrics().log_loss == pytest.approx(-math.log(1e-12), rel=1e-9)


def test_empty_and_one_class_streams_are_undefined_not_zero() -> None:
    empty = Stream().metrics()
    assert empty.num_rows == 0
    assert math.isnan(empty.log_loss)
    assert math.isnan(empty.auc)
    negatives = Stream()
    negatives.update([0, 0], [0.0, 0.0])
    assert negatives.metrics().log_loss == pytest.approx(math.log(2), rel=1e-9)
    assert math.isnan(negatives.metrics().normalized_entropy)
    assert math.isnan(negatives.metrics().calibration)


def test_infinite_logits_count_as_clipped_ones() -> None:
    stream = Stream()
    stream.update([1, 0], [-np.inf, np.inf])
    assert stream.metrics().log_loss == pytest.approx(-math.log(1e-12), rel=1e-9)
    assert stream.metrics().auc == 0.0


def test_rare_events_keep_their_calibration() -> None:
    stream = Stream()
    probability = 1e-6
    stream.update(np.arange(100_000) == 0, np.full(100_000, math.log(probability / (1 - probability))))
    assert stream.metrics().calibration == pytest.approx(0.1, rel=1e-5)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="labels of 0 or 1"):
        Stream().update([np.nan], [0.0])
    with pytest.raises(ValueError, match="scores that are numbers"):
        Stream().update([1], [np.nan])
    with pytest.raises(ValueError, match="expected the state of a stream"):
        Stream.from_state({"loss": [0, 0]})
