"""The environment is the one that constraints.txt names, and setup trusts no other."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_freeze():
    spec = importlib.util.spec_from_file_location("freeze", ROOT / "scripts" / "freeze.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


freeze = load_freeze()


def test_every_installed_distribution_has_its_exact_version_in_the_constraints():
    pinned = freeze.pins((ROOT / "constraints.txt").read_text())
    unpinned = {name: version for name, version in freeze.installed().items() if pinned.get(name) != version}
    assert unpinned == {}, "after a deliberate upgrade run `make constraints`"


def test_constraints_pin_and_do_nothing_else():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and not set(line) & set("+ :/@;") for line in lines)
    assert lines == sorted(set(lines), key=lambda line: line.split("==")[0])


@pytest.fixture
def clone(tmp_path):
    """The files that setup reads, with no environment yet."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def setup(clone, **settings):
    environment = os.environ | {"PYTHON": sys.executable, "GEMCUT_ACCELERATOR": "cpu"} | settings
    return subprocess.run(
        ["bash", "scripts/setup.sh"], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )


def test_setup_leaves_a_foreign_environment_alone(clone):
    (clone / ".venv").mkdir()
    (clone / ".venv" / "mine").touch()
    run = setup(clone)
    assert run.returncode == 1
    assert ".venv was not made by this script" in run.stderr
    assert [path.name for path in (clone / ".venv").iterdir()] == ["mine"]


def test_setup_names_what_it_expects_of_the_accelerator(clone):
    run = setup(clone, GEMCUT_ACCELERATOR="tpu")
    assert (run.returncode, run.stderr) == (1, "setup: GEMCUT_ACCELERATOR: expected cpu or cuda; got 'tpu'\n")
    assert not (clone / ".venv").exists()


def test_setup_says_when_there_is_no_python(clone):
    run = setup(clone, PYTHON="python-that-is-not-there")
    assert run.returncode == 1
    assert "found no Python 3.11 or newer" in run.stderr
    assert not (clone / ".venv").exists()


def test_a_setup_that_stops_midway_is_not_trusted_and_the_next_one_starts_over(clone):
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".gemcut-unfinished").touch()
    (clone / ".venv" / "half").touch()
    (clone / "constraints.txt").write_text("setuptools==0.0.0\n")  # no such version: this run stops too
    run = setup(clone, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert run.returncode != 0
    assert "starting over" in run.stdout
    assert not (clone / ".venv" / "half").exists()
    assert not (clone / ".venv" / ".gemcut-ready").exists()
    assert (clone / ".venv" / ".gemcut-unfinished").exists()
