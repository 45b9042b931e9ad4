"""What a run logs: to its own folder first, to MLflow as soon as that answers.

The training process only appends lines to `tracking.jsonl`; a thread sends them. So an outage costs nothing but a
warning, and `sync` delivers the rest later. One tracker a job: rank 0 has it, the other ranks have none.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import orjson

from eval.mlflow_sync import LONGEST_NAME, SPOOL_FILE, escape_name, read_entries, sync

__all__ = ["SPOOL_FILE", "Status", "Tracker", "sync", "tracking_id", "tracking_uri"]

log = logging.getLogger(__name__)

Status = Literal["FINISHED", "FAILED", "KILLED"]


def tracking_uri(configured: str | None, workdir: Path) -> str:
    """The configured MLflow URI, else `MLFLOW_TRACKING_URI`, else sqlite in the work folder."""
    return configured or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{workdir.absolute() / 'mlflow.db'}"


def tracking_id(run_folder: Path) -> str | None:
    """Our id of the run that is tracked in a folder, for its children's `parent`; None if none is."""
    spool = run_folder / SPOOL_FILE
    if not spool.exists():
        return None
    return next((entry["run"] for _, entry in read_entries(spool) if entry["kind"] == "start"), None)


@dataclass(slots=True)
class Tracker:
    """One run, being logged.

    Nothing here raises or waits for a server, but `finish`, which waits at most `patience_s`.

    Attributes:
        run_folder: folder with the spool.
        uri: MLflow tracking URI.
        id: our id of the run; MLflow's own id is found by the tag `gemcut.run`.
        interval_s: seconds between sendings.
        patience_s: longest wait for the last sending.
    """

    run_folder: Path
    uri: str
    id: str
    interval_s: float = 5.0
    patience_s: float = 60.0
    _undefined: dict[str, int] = field(default_factory=dict[str, int])
    _stop: threading.Event = field(default_factory=threading.Event)
    _sender: threading.Thread | None = None
    _warned: set[str] = field(default_factory=set[str])

    @classmethod
    def start(
        cls,
        run_folder: Path,
        *,
        uri: str,
        experiment: str,
        name: str,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        interval_s: float = 5.0,
        sends: bool = True,
    ) -> Self:
        """Begin to track, or go on: a folder that has a spool is the same run, resumed.

        Args:
            run_folder: where the spool is written; made if it is not there.
            uri: MLflow tracking URI, see `tracking_uri`.
            experiment: MLflow experiment.
            name: the run's name.
            parent: `Tracker.id` or `tracking_id` of the run that this one belongs under.
            tags: of the run.
            interval_s: seconds between sendings.
            sends: begin to send; else `begin_sending` or `finish` does, and MLflow is not imported before.
        """
        known = tracking_id(run_folder)
        tracker = cls(run_folder, uri, known or uuid.uuid4().hex, interval_s)
        if known:
            tracker._resume()
        about = {"run": tracker.id, "experiment": experiment, "name": name, "parent": parent, "tags": dict(tags or {})}
        tracker._append("start", **about)
        if sends:
            tracker.begin_sending()
        return tracker

    def begin_sending(self) -> threading.Thread:
        """The thread that sends, started if it was not."""
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_until_stopped, name="tracking", daemon=True)
            self._sender.start()
        return self._sender

    def log_params(self, params: Mapping[str, object]) -> None:
        """Log what was chosen; values become text, long ones an artifact."""
        self._append("params", values={_checked(name): str(value) for name, value in params.items()})

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log what was measured at a step; NaN and infinities, which MLflow can not hold, are counted and tagged."""
        numbers = {_checked(name): float(value) for name, value in values.items()}
        undefined: dict[str, tuple[str, int]] = {}
        for name, value in numbers.items():
            if not math.isfinite(value):
                self._undefined[name] = self._undefined.get(name, 0) + 1
                undefined[name] = (str(value), self._undefined[name])
        finite = {name: value for name, value in numbers.items() if name not in undefined}
        self._append("metrics", step=int(step), values=finite, **({"undefined": undefined} if undefined else {}))

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags; a later value replaces an earlier one."""
        self._append("tags", values={_checked(name): str(value) for name, value in tags.items()})

    def log_artifact(self, path: Path, *, folder: str | None = None) -> None:
        """Attach a file or a whole folder, as it is when it is sent; `folder` is its place in the run."""
        path, root = path.absolute(), self.run_folder.absolute()
        stored = path.relative_to(root) if path.is_relative_to(root) else path
        self._append("artifact", path=str(stored), folder=folder)

    def finish(self, status: Status = "FINISHED") -> None:
        """End the run and send the rest; what does not arrive waits for `sync`."""
        self._append("finish", status=status)
        sender = self.begin_sending()
        self._stop.set()
        sender.join(self.patience_s)
        if sender.is_alive():
            self._warn("send", f"{self.uri} is slow; the rest is kept in {self.run_folder / SPOOL_FILE}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stopped = kind is not None and not issubclass(kind, Exception)
        self.finish("KILLED" if stopped else "FAILED" if kind else "FINISHED")

    def _resume(self) -> None:
        spool = self.run_folder / SPOOL_FILE
        for _, entry in read_entries(spool):
            self._undefined |= {name: count for name, (_, count) in entry.get("undefined", {}).items()}
        if not spool.read_bytes().endswith(b"\n"):
            # A line that was torn by a crash is closed, so that the next one stands alone.
            with spool.open("ab") as file:
                file.write(b"\n")

    def _append(self, kind: str, **content: Any) -> None:
        line = orjson.dumps({"kind": kind, "time_ms": time.time_ns() // 1_000_000, **content}) + b"\n"
        try:
            self.run_folder.mkdir(parents=True, exist_ok=True)
            with (self.run_folder / SPOOL_FILE).open("ab") as file:
                file.write(line)
        except OSError as error:
            self._warn("spool", f"tracking is lost: {self.run_folder / SPOOL_FILE} can not be written ({error})")

    def _send_until_stopped(self) -> None:
        wait_s = self.interval_s
        while not self._stop.wait(wait_s):
            wait_s = self.interval_s if self._send() else min(2 * wait_s, 60.0)
        self._send()

    def _send(self) -> bool:
        try:
            sync(self.run_folder, self.uri)
        except Exception as error:  # noqa: BLE001 (whatever a tracking server does, training goes on)
            spool = self.run_folder / SPOOL_FILE
            self._warn("send", f"{self.uri} does not take tracking data; it is kept in {spool} ({str(error)[:200]})")
            return False
        self._warned.discard("send")
        return True

    def _warn(self, topic: str, message: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            log.warning(message)


def _checked(name: str) -> str:
    if not name or len(escape_name(name)) > LONGEST_NAME:
        raise ValueError(f"expected a name of 1 to {LONGEST_NAME} characters when escaped; got {name!r}. Shorten it.")
    return name
