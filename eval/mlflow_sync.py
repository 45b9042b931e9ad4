"""From a run's spool to MLflow, exactly once, however often it is tried and wherever it was cut off.

Every entry may be sent twice without effect: a run is found again by its tag, metrics carry the step and time they were
logged with, parameters and tags are set to the same value. The position of what has arrived is kept beside the spool.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from eval.artifacts import write_json
from eval.locks import lock_held
from serving.errors import Problem, UserError

log = logging.getLogger(__name__)

SPOOL_FILE = "tracking.jsonl"
POSITION_FILE = "tracking.position.json"
RUN_TAG, PARENT_TAG, MLFLOW_PARENT_TAG = "gemcut.run", "gemcut.parent", "mlflow.parentRunId"
LONGEST_PARAM, LONGEST_TAG = 6000, 8000
LONGEST_NAME = 230
"""MLflow takes 250; some names get a prefix."""
METRICS_A_BATCH, VALUES_A_BATCH, LINES_A_BATCH = 800, 80, 1000
QUIET = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Defaults for MLflow's client, unless the environment says otherwise: it gives up early, as `sync` is tried again,
and it reports to nobody."""


def escape_name(name: str) -> str:
    """What MLflow accepts as a name; reversible, so two names never become one.

    Anything but ASCII letters, digits, `_`, `-`, space and single inner slashes becomes `.HH` for each UTF-8 byte.

    Example:
        >>> escape_name("test/ne/click@7d")
        'test/ne/click.407d'
    """
    return re.sub(
        r"[^A-Za-z0-9_\- /]|^/|/$|(?<=/)/", lambda found: "".join(f".{byte:02X}" for byte in found[0].encode()), name
    )


def unescape_name(name: str) -> str:
    """The name that `escape_name` was given.

    Example:
        >>> unescape_name("test/ne/click.407d")
        'test/ne/click@7d'
    """
    return re.sub(r"(?:\.[0-9A-F]{2})+", lambda found: bytes.fromhex(found[0].replace(".", "")).decode(), name)


def read_entries(spool: Path, position: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Entries of whole lines from a byte position on, each with the position behind it; torn lines are skipped."""
    with spool.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n"):
                return
            position += len(line)
            try:
                yield position, orjson.loads(line)
            except orjson.JSONDecodeError:
                continue


def sync(run_folder: Path, uri: str) -> int:
    """Send to the MLflow server what it does not have of this run's spool.

    Args:
        run_folder: folder with a `tracking.jsonl`.
        uri: MLflow tracking URI; each server has a position of its own.

    Returns:
        Entries sent; 0 if there was nothing to send, or another process is sending right now.

    Raises:
        UserError: there is no spool.
        Exception: whatever MLflow raises if it is out of reach; call again later.
    """
    spool = run_folder / SPOOL_FILE
    if not spool.exists():
        problem = Problem(str(spool), "the spool of a tracked run", "no such file", "Name the folder of a run.")
        raise UserError(problem)
    with lock_held(run_folder / ".tracking.lock") as alone:
        return _Replay.open(run_folder, uri).send_all() if alone else 0


@dataclass(slots=True)
class _Batch:
    """Values on their way to one `log_batch`; later tags and parameters of one name replace earlier ones."""

    metrics: list[Any] = field(default_factory=list[Any])
    params: dict[str, str] = field(default_factory=dict[str, str])
    tags: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class _Replay:
    """One pass over the spool of one run, to one server."""

    run_folder: Path
    uri: str
    client: Any
    experiment_id: str
    run_id: str
    position: int

    @classmethod
    def open(cls, run_folder: Path, uri: str) -> _Replay:
        """Connect; find the run, or create it."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        if database := _database(uri):
            database.parent.mkdir(parents=True, exist_ok=True)
        from mlflow import MlflowClient

        for library in ("mlflow", "alembic", "urllib3"):
            logging.getLogger(library).setLevel(logging.ERROR)
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        known = _positions(run_folder).get(uri)
        if known is not None:
            return cls(run_folder, uri, client, known["experiment_id"], known["run_id"], known["position"])
        _, start = next(read_entries(run_folder / SPOOL_FILE))
        experiment_id = _experiment(client, start["experiment"], uri)
        return cls(run_folder, uri, client, experiment_id, _run(client, experiment_id, start), 0)

    def send_all(self) -> int:
        """Send everything behind the position, in batches, moving the position after each."""
        num_sent, batch, num_lines = 0, _Batch(), 0
        for position, entry in read_entries(self.run_folder / SPOOL_FILE, self.position):
            if num_lines and (num_lines >= LINES_A_BATCH or _is_full(batch) or entry["kind"] == "finish"):
                self._send(batch)
                self._keep_position()
                batch, num_lines = _Batch(), 0
            self._add(entry, batch)
            self.position = position
            num_lines, num_sent = num_lines + 1, num_sent + 1
        if num_lines:
            self._send(batch)
            self._keep_position()
        return num_sent

    def _add(self, entry: Mapping[str, Any], batch: _Batch) -> None:
        from mlflow.entities import Metric

        kind = entry["kind"]
        if kind == "metrics":
            time_ms, step = entry["time_ms"], entry["step"]
            batch.metrics += [Metric(escape_name(k), v, time_ms, step) for k, v in entry["values"].items()]
            for name, (what, count) in entry.get("undefined", {}).items():
                batch.metrics.append(Metric("undefined/" + escape_name(name), count, time_ms, step))
                batch.tags["undefined/" + escape_name(name)] = f"{what} at step {step}"
        elif kind == "params":
            for name, value in entry["values"].items():
                batch.params[escape_name(name)] = self._fit_param(name, value)
        elif kind == "tags":
            batch.tags |= {escape_name(k): v[:LONGEST_TAG] for k, v in entry["values"].items()}
        elif kind == "artifact":
            self._send_artifact(self.run_folder / entry["path"], entry.get("folder"), batch)
        elif kind == "start":
            self.client.update_run(self.run_id, status="RUNNING")
        elif kind == "finish":
            self.client.set_terminated(self.run_id, status=entry["status"], end_time=entry["time_ms"])

    def _fit_param(self, name: str, value: str) -> str:
        if len(value) <= LONGEST_PARAM:
            return value
        path = f"params/{escape_name(name).replace('/', '.2F')}.txt"
        self.client.log_text(self.run_id, value, path)
        return f"artifact {path}, sha256 {hashlib.sha256(value.encode()).hexdigest()}"

    def _send_artifact(self, path: Path, folder: str | None, batch: _Batch) -> None:
        if path.is_dir():
            target = path.name if folder is None else f"{folder}/{path.name}"
            self.client.log_artifacts(self.run_id, str(path), artifact_path=target)
        elif path.is_file():
            self.client.log_artifact(self.run_id, str(path), artifact_path=folder)
        else:
            log.warning("%s is gone; the tracking run gets a tag instead of it", path)
            batch.tags["missing_artifact/" + escape_name(path.name)] = "gone before it was sent"

    def _send(self, batch: _Batch) -> None:
        from mlflow.entities import Param, RunTag

        if batch.params:
            # A resumed job may log another value; MLflow refuses that for ever, so the new value becomes a tag.
            there = self.client.get_run(self.run_id).data.params
            for name in [name for name, value in batch.params.items() if there.get(name, value) != value]:
                batch.tags[f"changed/{name}"] = batch.params.pop(name)[:LONGEST_TAG]
        for metrics in _pieces(batch.metrics, METRICS_A_BATCH):
            self.client.log_batch(self.run_id, metrics=metrics)
        for params in _pieces([Param(k, v) for k, v in batch.params.items()], VALUES_A_BATCH):
            self.client.log_batch(self.run_id, params=params)
        for tags in _pieces([RunTag(k, v) for k, v in batch.tags.items()], VALUES_A_BATCH):
            self.client.log_batch(self.run_id, tags=tags)

    def _keep_position(self) -> None:
        place = {"experiment_id": self.experiment_id, "run_id": self.run_id, "position": self.position}
        write_json(self.run_folder / POSITION_FILE, _positions(self.run_folder) | {self.uri: place})


def _positions(run_folder: Path) -> dict[str, Any]:
    path = run_folder / POSITION_FILE
    return orjson.loads(path.read_bytes()) if path.exists() else {}


def _is_full(batch: _Batch) -> bool:
    return len(batch.metrics) >= METRICS_A_BATCH or len(batch.params) + len(batch.tags) >= VALUES_A_BATCH


def _pieces(values: list[Any], size: int) -> Iterator[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _database(uri: str) -> Path | None:
    """File of a sqlite URI: `sqlite:///relative` or `sqlite:////absolute`."""
    parts = urlsplit(uri)
    return Path(parts.path[1:]).absolute() if parts.scheme == "sqlite" else None


def _experiment(client: Any, name: str, uri: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is not None:
        return found.experiment_id
    database = _database(uri)
    location = (database.parent / "mlartifacts").as_uri() if database else None
    try:
        return client.create_experiment(name, artifact_location=location)
    except MlflowException:
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return found.experiment_id


def _run(client: Any, experiment_id: str, start: Mapping[str, Any]) -> str:
    """The run of a spool's first line: found by its tag if an earlier try created it; joined to parent and children."""
    found = _find(client, experiment_id, RUN_TAG, start["run"])
    if found:
        run_id = found[0]
    else:
        tags = {escape_name(name): value for name, value in start["tags"].items()} | {RUN_TAG: start["run"]}
        tags |= {PARENT_TAG: start["parent"]} if start["parent"] else {}
        run = client.create_run(experiment_id, run_name=start["name"], start_time=start["time_ms"], tags=tags)
        run_id = run.info.run_id
    if start["parent"]:
        for parent_id in _find(client, experiment_id, RUN_TAG, start["parent"]):
            client.set_tag(run_id, MLFLOW_PARENT_TAG, parent_id)
    # Children that were sent before their parent.
    for child_id in _find(client, experiment_id, PARENT_TAG, start["run"]):
        client.set_tag(child_id, MLFLOW_PARENT_TAG, run_id)
    return run_id


def _find(client: Any, experiment_id: str, tag: str, value: str) -> list[str]:
    runs = client.search_runs([experiment_id], filter_string=f"tags.`{tag}` = '{value}'")
    return [run.info.run_id for run in runs]
