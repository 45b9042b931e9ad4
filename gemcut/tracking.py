"""Runs of a project in MLflow: the foundation model's run, and its students' below it."""

from __future__ import annotations

from pathlib import Path

from eval.artifacts import write_file
from eval.tracking import Tracker, tracking_id, tracking_uri
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace

RESOLVED_FILE = "project.resolved.yaml"


def uri_of(loaded: LoadedProject) -> str:
    """The MLflow tracking URI of a project."""
    return tracking_uri(loaded.project.tracking.uri, loaded.workdir)


def start_run(loaded: LoadedProject, folder: Path, *, name: str, sends: bool = True) -> Tracker:
    """The run that is tracked in a folder; any but the foundation model's is its child.

    The project as it was understood lies in the folder as `project.resolved.yaml`, and is the run's first artifact.
    `sends` is that of `Tracker.start`.
    """
    foundation = Workspace(loaded).foundation
    write_file(folder / RESOLVED_FILE, loaded.project.to_yaml().encode())
    tracker = Tracker.start(
        folder,
        uri=uri_of(loaded),
        experiment=loaded.project.tracking.experiment or loaded.project.name,
        name=name,
        parent=None if folder == foundation else tracking_id(foundation),
        tags={"gemcut.project_digest": loaded.digest},
        sends=sends,
    )
    tracker.log_artifact(folder / RESOLVED_FILE)
    return tracker
