"""A full disk is a user's mistake too: said plainly, nothing half written, and with space the command goes on."""

import json
import resource
import subprocess
import sys

import pytest

from transfer.distill import RESULT_FILE

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def gemcut(project, *arguments, largest_file=None):
    """Run a command; no file may grow beyond `largest_file` bytes, which fails as a full disk does: in the write."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    command = [sys.executable, "-m", "gemcut", *arguments, "-p", project.path, "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=limit if largest_file else None
    )


def assert_told(run, *words):
    assert run.returncode == 3, run.stderr
    assert "Traceback" not in run.stderr
    problems = json.loads(run.stdout.splitlines()[-1])["problems"]
    assert "run the same command again" in problems[0]["remedy"]
    for word in words:
        assert word in problems[0]["where"] + problems[0]["got"]


def test_prepare_goes_on_when_there_is_space_again(tiny, tiny_logs, tmp_path):
    project = tiny_logs.copy(tmp_path / "tiny")
    assert_told(gemcut(project, "prepare", largest_file=50_000), str(project.work), "File too large")
    assert not project.space().store.exists()
    assert gemcut(project, "prepare").returncode == 0
    made, expected = ((p.space().store / "manifest.json").read_bytes() for p in (project, tiny))
    assert made == expected


def test_distill_goes_on_when_there_is_space_again(tiny, tiny_teacher, tmp_path):
    project = tiny_teacher.copy(tmp_path / "tiny")
    placement = ["distill", "--placement", "related_click"]
    assert_told(gemcut(project, *placement, largest_file=4_000), str(project.work / "students"), "File too large")
    assert not list(project.work.rglob(RESULT_FILE))
    assert gemcut(project, *placement).returncode == 0
    results = [
        {**json.loads((p.space().student("related_click", 0, arm) / RESULT_FILE).read_bytes()), "seconds": None}
        for arm in ("student", "twin")
        for p in (project, tiny)
    ]
    assert results[0] == results[1]
    assert results[2] == results[3]
