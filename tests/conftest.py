"""Settings of every test, made before anything is imported that reads them; and a tiny project, run to its bundles."""

import os

# One thread: the same numbers bit by bit, and no fight over the cores between test processes.
os.environ["OMP_NUM_THREADS"] = "1"

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# Not derandomised would mean a failure that the next run hides; a deadline would time the machine, not the code.
settings.register_profile("gemcut", derandomize=True, deadline=None)
settings.load_profile("gemcut")

# Every kind of feature, one log with numbers and one without, a delayed objective, an objective that one surface lacks.
TINY_PROJECT = """
name: tiny
tables:
  user: {buckets: 200}
  item: {buckets: 200}
  category: {type: string, buckets: 50}
  segment: {type: string, values: [segment_00, segment_01, segment_02]}
  device: {type: string, values: [desktop, mobile, tablet]}
  action: {type: string, values: [view, cart, buy]}
data:
  impressions:
    files: data/impressions.parquet
    context: [{kind: id, name: device}, {kind: number, name: hour, rule: {scale: 24}}]
  events:
    actions:
      files: data/events.parquet
      limit: 16
      features: [{kind: id, name: action}, {kind: number, name: dwell_s, rule: {transform: log1p}}]
    visits: {files: data/events.parquet, limit: 12}
  items:
    files: data/items.parquet
    features: [{kind: id, name: category}, {kind: number, name: price, rule: {transform: log1p}}]
  users: {files: data/users.parquet, features: [{kind: id, name: segment}]}
surfaces: [feed, search, related]
objectives:
  click: {}
  long_view: {}
  conversion: {surfaces: [search, related], delay: P1D}
split: {test_from: 2024-02-18T00:00:00}
foundation:
  model: {width: 8, encoder_events: 8, interleaved_layers: 1, interaction_layers: 1, interaction_tokens: 2, hidden: 16}
  training: {batch_requests: 32}
placements:
  related_click:
    surface: related
    objectives: [click]
    student: {width: 4, history: 8, hidden: [16, 8], batch_requests: 16, dense_learning_rate: 0.01}
    budget: {limit_ms: 10, rate_per_s: 50}
  search_conversion:
    surface: search
    objectives: [click, conversion]
    student: {width: 4, history: 8, hidden: [16, 8], batch_requests: 16, dense_learning_rate: 0.01}
    budget: {limit_ms: 10, rate_per_s: 50}
"""
TINY_REQUESTS = 400


@dataclass(frozen=True)
class Tiny:
    """A project in a folder of its own, and what its commands have left there."""

    path: Path

    @property
    def root(self):
        return self.path.parent

    @property
    def work(self):
        return self.root / "work"

    def load(self, *overrides):
        from gemcut.project import load_project

        return load_project(self.path, overrides)

    def space(self, *overrides):
        from gemcut.workspace import Workspace

        return Workspace(self.load(*overrides))

    def copy(self, root, *, without=()):
        """The same project elsewhere, for a test that changes it; `without` some paths under `work/`."""
        skipped = {self.work / path for path in without}
        shutil.copytree(
            self.root, root, ignore=lambda folder, names: [name for name in names if Path(folder, name) in skipped]
        )
        return Tiny(root / self.path.name)


def train_students(project):
    """`gemcut distill --all` in this process."""
    from transfer.distill import ARMS, train_student

    space = project.space()
    for placement in space.loaded.project.placements:
        for arm in ARMS:
            train_student(space.student_job(placement, 0, arm))


@pytest.fixture(scope="session")
def tiny_logs(tmp_path_factory):
    """The tiny project and its tables; no command has run. Not to be changed."""
    from gemcut.demo_data.synthetic import make_data

    root = tmp_path_factory.mktemp("logs")
    make_data(root / "data", num_requests=TINY_REQUESTS)
    (root / "project.yaml").write_text(TINY_PROJECT)
    return Tiny(root / "project.yaml")


@pytest.fixture(scope="session")
def tiny_teacher(tiny_logs, tmp_path_factory):
    """The tiny project with its store, teacher and soft labels. Not to be changed."""
    from gemcut.commands.label import label
    from gemcut.commands.prepare import prepare
    from gemcut.commands.train import train
    from gemcut.console import Screen

    project = tiny_logs.copy(tmp_path_factory.mktemp("teacher") / "tiny")
    loaded, screen = project.load(), Screen()
    prepare(loaded, screen)
    train(loaded, screen)
    label(loaded, screen)
    return project


@pytest.fixture(scope="session")
def tiny(tiny_teacher, tmp_path_factory):
    """The tiny project with everything up to its bundles. Not to be changed."""
    from gemcut.commands.export import export
    from gemcut.console import Screen

    project = tiny_teacher.copy(tmp_path_factory.mktemp("tiny") / "tiny")
    train_students(project)
    loaded = project.load()
    export(loaded, Screen(), placements=list(loaded.project.placements))
    return project
