"""`gemcut distill`: many jobs, one command."""

import json
import signal
import subprocess
import sys
import time

import pytest

from foundation.data.reader import Reader
from foundation.data.store import Store
from foundation.soft_labels import SoftLabelWriter, read_soft_labels
from gemcut.commands.distill import distill
from gemcut.console import Screen
from serving.errors import MismatchError, UserError
from transfer.distill import RESULT_FILE

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

JOBS = [(placement, arm) for placement in ("related_click", "search_conversion") for arm in ("twin", "student")]


def weights_of(project):
    """Digest of every finished job's weights."""
    found = {job: project.space().student(job[0], 0, job[1]) / RESULT_FILE for job in JOBS}
    return {job: json.loads(path.read_bytes())["weights_digest"] for job, path in found.items() if path.is_file()}


def only_of_surface(project, surface):
    """Leave soft labels on the rows of one surface alone."""
    space = project.space()
    schema = space.loaded.project
    store = Store.open(space.store, schema)
    with Reader(store, schema, store.select(surfaces=(surface,)), 512) as reader:
        rows = {row for batch in reader for row in batch.row_ids.tolist()}
    stamps = {"data_fingerprint": store.fingerprint, "schema_digest": schema.schema_digest()}
    labels = read_soft_labels(space.progressive_labels, **stamps)
    kept = [place for place, row in enumerate(labels.row_ids.tolist()) if row in rows]
    assert 0 < len(kept) < len(labels.row_ids)
    for path in space.progressive_labels.iterdir():
        path.unlink()
    writer = SoftLabelWriter(space.progressive_labels, labels.manifest.objectives)
    writer.add(labels.row_ids[kept], labels.cutoffs_us[kept], labels.logits[kept])
    writer.publish(teacher=labels.manifest.teacher, **stamps)


def test_a_placement_that_fails_does_not_stop_the_others_and_is_told_at_the_end(tiny, tiny_teacher, tmp_path):
    """Two processes; what they make is bit for bit what one made."""
    project = tiny_teacher.copy(tmp_path / "tiny")
    only_of_surface(project, surface="related")
    with pytest.raises(UserError) as caught:
        distill(project.load(), Screen(), placements=["related_click", "search_conversion"], num_processes=2)
    (problem,) = caught.value.problems
    assert problem.where == "placement search_conversion: transfer.soft_labels"
    made = weights_of(project)
    expected = weights_of(tiny)
    assert made == {job: expected[job] for job in JOBS if job != ("search_conversion", "student")}


def test_where_no_placement_learns_from_the_teacher_there_need_be_none(tiny, tiny_teacher, tmp_path):
    project = tiny_teacher.copy(tmp_path / "tiny", without=["foundation", "soft_labels"])
    with pytest.raises(MismatchError, match="gemcut train"):
        distill(project.load(), Screen(), placements=["related_click", "search_conversion"])
    assert weights_of(project) == {}, "nothing was begun"
    alone = project.load("placements.related_click.transfer.soft_labels=null")
    distill(alone, Screen(), placements=["related_click"], num_processes=2)
    twin = weights_of(tiny)["related_click", "twin"]
    made = weights_of(project)
    assert made["related_click", "twin"] == twin


def test_sigterm_in_the_middle_and_run_again_ends_with_the_same_students(tiny, tiny_teacher, tmp_path):
    project = tiny_teacher.copy(tmp_path / "tiny")
    command = [sys.executable, "-m", "gemcut", "distill", "-p", project.path, "--all", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not weights_of(project):  # the test's time limit ends it
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    assert running.wait() != 0
    before = weights_of(project)
    kept = project.space().student("related_click", 0, "twin") / RESULT_FILE
    made_at = kept.stat().st_mtime_ns
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert list(told) == [f"{placement} seed 0 {arm}" for placement, arm in JOBS]
    assert weights_of(project) == weights_of(tiny)
    assert before.items() <= weights_of(tiny).items()
    assert kept.stat().st_mtime_ns == made_at
    assert "next: gemcut export --all -p" in done.stderr
