"""Probabilities for the candidates of one request, from raw features, by the bundle alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from serving.bundle import load_bundle
from serving.errors import BundleError, Problem, RequestError, did_you_mean, listed, shortened
from serving.features import (
    TIME,
    Columns,
    FloatArray,
    Group,
    before,
    check_columns,
    encode_columns,
    groups_of,
    request_time,
)
from serving.manifest import IdInput, Manifest
from serving.session import open_session

Feeds = dict[str, NDArray[Any]]

_OUTPUT = "probabilities"
_EXPORT_AGAIN = "Export the bundle again: its manifest and its graph do not belong together."


class Ranker:
    """Scores requests with one bundle. Threads may share it; create it after a fork.

    Attributes:
        manifest: the bundle's contract: which features, of which types, in which tables.
    """

    def __init__(self, manifest: Manifest, session: ort.InferenceSession) -> None:
        """Join a manifest and an open graph; `load` does it for a bundle folder.

        Raises:
            BundleError: the graph's inputs and outputs are not those that the manifest promises.
        """
        self.manifest = manifest
        self._session = session
        self._request, self._candidates, self._histories = groups_of(manifest)
        problems = list(
            _graph_problems(manifest, session, [self._request, self._candidates, *self._histories.values()])
        )
        if problems:
            raise BundleError(problems)

    @classmethod
    def load(cls, folder: Path | str) -> Ranker:
        """Verify a bundle folder and open it.

        Raises:
            BundleError: see `load_bundle` and `open_session`.
        """
        bundle = load_bundle(folder)
        return cls(bundle.manifest, open_session(bundle.model))

    def score(
        self, request: Mapping[str, Any], histories: Mapping[str, Columns], candidates: Columns
    ) -> dict[str, FloatArray]:
        """Probabilities of each objective for each candidate.

        Args:
            request: raw value of each request feature, None = missing; and `time`, microseconds since 1970 UTC.
            histories: for each log a column for each of its features and `time`, oldest event first; only the newest
                `limit` events strictly before the request are used, and a log that is absent is empty.
            candidates: a column of N raw values for each candidate feature; lists or numpy arrays.

        Returns:
            For each objective [N] float32 in [0, 1].

        Raises:
            RequestError: unknown or absent names, columns of different length, values of the wrong type, or more
                candidates than the bundle takes; every problem is listed.
            BundleError: the model answers with something else than probabilities.
        """
        return self.score_arrays(self.encode(request, histories, candidates))

    def encode(self, request: Mapping[str, Any], histories: Mapping[str, Columns], candidates: Columns) -> Feeds:
        """Graph inputs of a request (names, shapes and dtypes: `Manifest`). Arguments and errors as for `score`."""
        feeds: Feeds = {}
        problems = self._log_problems(histories)
        now_us = request_time(_mapping(request, "request"))
        for group, columns in self._grouped(request, histories, candidates):
            try:
                found = check_columns(columns, group)
                if group is self._candidates:
                    self._check_count(found)
                of_features = columns
                if group.ages is not None:
                    of_features, feeds[group.ages] = before(columns, group, now_us)
                feeds.update(encode_columns(of_features, group, tables=self.manifest.tables))
            except RequestError as error:
                problems.extend(error.problems)
        if problems:
            raise RequestError(problems)
        return feeds

    def score_arrays(self, feeds: Feeds) -> dict[str, FloatArray]:
        """Probabilities from graph inputs as `encode` makes them. Returns and errors as for `score`."""
        objectives = self.manifest.objectives
        names = (self._candidates.ids, self._candidates.numbers)
        num_candidates = next((len(feeds[name]) for name in names if name in feeds), 0)
        if num_candidates == 0:
            return {objective: np.empty(0, dtype=np.float32) for objective in objectives}
        probabilities = np.asarray(self._session.run([_OUTPUT], feeds)[0])
        expected = (num_candidates, len(objectives))
        # The comparison is false for NaN too: a damaged weight must not become a ranking.
        if probabilities.shape != expected or not np.all((probabilities >= 0) & (probabilities <= 1)):
            got = f"shape {probabilities.shape}, among them {shortened(probabilities.ravel()[:3].tolist())}"
            remedy = "Do not serve this bundle; export it again."
            raise BundleError(Problem(_OUTPUT, f"numbers in [0, 1] of shape {expected}", got, remedy))
        return {objective: probabilities[:, place] for place, objective in enumerate(objectives)}

    def _grouped(self, request: Any, histories: Any, candidates: Any) -> Iterator[tuple[Group, Any]]:
        yield self._request, {name: [value] for name, value in request.items() if name != TIME}
        yield self._candidates, candidates
        for log, group in self._histories.items():
            yield group, histories.get(log, dict.fromkeys(group.names, ()))

    def _log_problems(self, histories: Any) -> list[Problem]:
        unknown = _mapping(histories, "histories").keys() - self._histories.keys()
        return [
            Problem(
                "histories",
                f"logs of the bundle ({listed(self._histories) or 'it has none'})",
                shortened(log),
                did_you_mean(str(log), self._histories, "Leave it out."),
            )
            for log in sorted(unknown, key=str)
        ]

    def _check_count(self, found: int) -> None:
        largest = self.manifest.max_candidates
        if found > largest:
            remedy = "Send fewer, or export with a larger `max_candidates`."
            raise RequestError(Problem("candidates", f"at most {largest}", str(found), remedy))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError(Problem(where, "a mapping of name to value", shortened(value), "Send an object."))
    return value


def _wanted_inputs(groups: list[Group]) -> dict[str, tuple[Any, ...]]:
    """Element type and shape of every input, None where a size varies."""
    wanted: dict[str, tuple[Any, ...]] = {}
    for group in groups:
        if group.num_ids:
            wanted[group.ids] = ("tensor(int64)", group.rows, group.num_ids)
        if group.num_numbers:
            wanted[group.numbers] = ("tensor(float)", group.rows, group.num_numbers)
        if group.ages is not None:
            wanted[group.ages] = ("tensor(float)", None)
    return wanted


def _graph_problems(manifest: Manifest, session: ort.InferenceSession, groups: list[Group]) -> Iterator[Problem]:
    """Where the graph's inputs and outputs differ from the manifest's."""
    wanted = _wanted_inputs(groups)
    found = {
        node.name: (node.type, *(size if isinstance(size, int) else None for size in node.shape))
        for node in session.get_inputs()
    }
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            expected, got = str(wanted.get(name, "no such input")), str(found.get(name, "no such input"))
            yield Problem(f"model.onnx: input {name}", expected, got, _EXPORT_AGAIN)
    outputs = [node.name for node in session.get_outputs()]
    if outputs != [_OUTPUT]:
        yield Problem("model.onnx: outputs", f"`{_OUTPUT}` alone", ", ".join(outputs), _EXPORT_AGAIN)
    for group in groups:
        for feature in group.features:
            if isinstance(feature, IdInput) and feature.table not in manifest.tables:
                where = f"manifest.json: {group.where}.{feature.name}"
                yield Problem(where, "a table of the manifest", repr(feature.table), _EXPORT_AGAIN)
