"""Parity: a bundle, run by the code that will serve it, must say what the trained model said, or it is no bundle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.predictions import Predictions
from serving.errors import BundleError, Problem
from serving.features import groups_of
from serving.manifest import IdInput, Manifest, Parity
from serving.ranker import Ranker
from transfer.served import ServedStudent

TOLERANCE = 1e-5
"""Largest difference of two probabilities: float32 sums in another order differ by less than 1e-6 here."""

TOP = 10
HOSTILE_COUNTS = (0, 1, 2, 513)
UNKNOWN: dict[str, Any] = {"int": 2**63 - 1, "string": "\N{SNOWMAN} of nobody"}
HOSTILE_IDS = (-1, 0, 2**31, 2**62, 2**63 - 1)

Request = dict[str, Any]


def check_parity(
    ranker: Ranker,
    model: ServedStudent,
    requests: list[Request],
    *,
    positions: NDArray[np.int64],
    predictions: Predictions,
) -> Parity:
    """Compare on ordinary and hostile requests.

    Args:
        ranker: the exported files, opened by the serving code.
        model: the same student in torch, for requests that training never sees.
        requests: raw, as logged.
        positions: of those requests in the store.
        predictions: what the trained model said of them, TorchRec tables and all.

    Raises:
        BundleError: a probability differs by more than the tolerance; names the objective, the kind of request and the
            error.
    """
    tally = _Tally(ranker.manifest.objectives)
    for request, position in zip(requests, positions, strict=True):
        served = ranker.score(request["request"], request["histories"], request["candidates"])
        rows = predictions.request == position
        for objective, probabilities in served.items():
            tally.compare("logged requests", objective, probabilities, predictions.probabilities[objective][rows])
        tally.num_requests += 1
        tally.num_rows += int(rows.sum())
    for kind, feeds in _hostile_feeds(ranker, requests):
        with torch.no_grad():
            expected = model({name: torch.as_tensor(array) for name, array in feeds.items()}).numpy()
        served = ranker.score_arrays(feeds)
        for place, objective in enumerate(ranker.manifest.objectives):
            tally.compare(kind, objective, served[objective], expected[:, place])
        tally.num_requests += 1
        tally.num_rows += len(expected)
    if tally.problems:
        raise BundleError(tally.problems)
    return Parity(
        num_requests=tally.num_requests,
        num_rows=tally.num_rows,
        largest_error=tally.largest,
        tolerance=TOLERANCE,
        order_flips=tally.flips,
    )


class _Tally:
    """Largest errors and order flips so far, and every breach."""

    def __init__(self, objectives: tuple[str, ...]) -> None:
        self.num_requests = self.num_rows = 0
        self.largest = dict.fromkeys(objectives, 0.0)
        self.flips = dict.fromkeys(objectives, 0)
        self.problems: list[Problem] = []

    def compare(self, kind: str, objective: str, served: NDArray[Any], expected: NDArray[Any]) -> None:
        """Take what the bundle and the model said of one request's candidates."""
        if served.shape != expected.shape:
            self._breach(kind, objective, f"{expected.shape[0]} probabilities", f"{served.shape[0]}")
            return
        error = float(np.abs(served - expected).max(initial=0.0))
        self.largest[objective] = max(self.largest[objective], error)
        self.flips[objective] += order_flips(served, expected)
        if not error <= TOLERANCE:
            self._breach(kind, objective, f"probabilities within {TOLERANCE}", f"an error of {error:.3g}")

    def _breach(self, kind: str, objective: str, expected: str, got: str) -> None:
        remedy = "Nothing was published. Export again; if it stays, a layer of the student exports wrongly."
        self.problems.append(Problem(f"parity on {kind}: objective {objective}", expected, got, remedy))


def order_flips(served: NDArray[Any], expected: NDArray[Any]) -> int:
    """Pairs among the expected top 10 that are served in the opposite order, ties within the tolerance not counted.

    Example:
        >>> order_flips(np.array([0.1, 0.9, 0.5]), np.array([0.1, 0.5, 0.9]))
        1
    """
    top = np.argsort(-expected, kind="stable")[:TOP]
    ahead = np.asarray(expected)[top][:, None] - np.asarray(expected)[top][None, :] > TOLERANCE
    behind = np.asarray(served)[top][:, None] - np.asarray(served)[top][None, :] < 0
    return int((ahead & behind).sum())


def _hostile_feeds(ranker: Ranker, requests: list[Request]) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Graph inputs that logs seldom hold, made of logged ones."""
    ordinary_request = max(requests, key=_fewest_events)  # the first may have none, and then nothing to damage
    for kind, request in _hostile_requests(ranker, ordinary_request):
        yield kind, ranker.encode(request["request"], request["histories"], request["candidates"])
    ordinary = ranker.encode(*(ordinary_request[part] for part in ("request", "histories", "candidates")))
    for name, array in ordinary.items():
        if array.dtype != np.int64 or not array.size:
            continue
        sizes = _table_sizes(ranker.manifest, name)
        for kind, bad in [*((str(bad), bad) for bad in HOSTILE_IDS), ("last", sizes - 1), ("last + 1", sizes)]:
            damaged = array.copy()
            damaged[0] = bad
            yield f"id {kind} in {name}", ordinary | {name: damaged}


def _table_sizes(manifest: Manifest, name: str) -> NDArray[np.int64]:
    """Rows of the table of each column of an input of ids."""
    request, candidates, histories = groups_of(manifest)
    group = next(group for group in (request, candidates, *histories.values()) if group.ids == name)
    tables = [feature.table for feature in group.features if isinstance(feature, IdInput)]
    return np.array([manifest.tables[table].num_rows for table in tables])


def _fewest_events(request: Request) -> int:
    return min((len(columns["time"]) for columns in request["histories"].values()), default=0)


def _hostile_requests(ranker: Ranker, request: Request) -> Iterator[tuple[str, Request]]:
    """Raw requests: extreme counts, extreme histories, nothing known, ids nobody has seen, numbers that are none."""
    longest = max(history.limit for history in ranker.manifest.histories)
    for count in HOSTILE_COUNTS:
        yield f"{count} candidates", request | {"candidates": _resized(request["candidates"], count)}
    yield "an empty history", request | {"histories": {log: _resized(c, 0) for log, c in request["histories"].items()}}
    yield (
        "the longest history",
        request | {"histories": {log: _lengthened(c, longest + 1) for log, c in request["histories"].items()}},
    )
    unknown = {name: [None] * len(column) for name, column in request["candidates"].items()}
    nobody = {name: value if name in ("time", "surface") else None for name, value in request["request"].items()}
    yield "everything missing", request | {"request": nobody, "candidates": unknown}
    candidates = request["candidates"]
    columns = {
        feature.name: [UNKNOWN[ranker.manifest.tables[feature.table].type]] * len(candidates[feature.name])
        for feature in ranker.manifest.candidate
        if isinstance(feature, IdInput)
    }
    yield "unknown ids", request | {"candidates": candidates | columns}
    for number in (float("nan"), float("inf"), -float("inf"), 1e308):
        columns = {
            feature.name: [number] * len(candidates[feature.name])
            for feature in ranker.manifest.candidate
            if not isinstance(feature, IdInput)
        }
        if columns:
            yield f"the number {number}", request | {"candidates": candidates | columns}


def _resized(columns: dict[str, list[Any]], count: int) -> dict[str, list[Any]]:
    return {name: list(islice(cycle(column), count)) if column else [] for name, column in columns.items()}


def _lengthened(columns: dict[str, list[Any]], count: int) -> dict[str, list[Any]]:
    """The oldest event again and again before the others, so that times still ascend."""
    return {name: column[:1] * (count - len(column)) + column for name, column in columns.items()}
