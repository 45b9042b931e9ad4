"""The command line as a user meets it: exit codes, what is said, and the one JSON document for machines."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gemcut.cli import app
from gemcut.console import Screen
from serving.errors import Problem, UserError

COMMANDS = ["validate", "prepare", "train", "label", "distill", "export", "gate", "plan", "evaluate", "sync", "demo"]
NAMES, VALUES = "a command and options that exist", "a valid option value or argument"


def test_these_are_the_commands():
    assert [command.callback.__name__ for command in app.registered_commands] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(gemcut, command):
    code, out, _ = gemcut(command, "--help")
    assert code in (0, None)
    assert f"gemcut {command}" in out
    assert "--json" in out


@pytest.mark.parametrize(
    ("arguments", "said", "expected"),
    [
        (["prepair"], "prepare", NAMES),
        (["prepare", "--projct", "x.yaml"], "--project", NAMES),
        (["distill", "--jobs", "many"], "--jobs", VALUES),
        (["distill", "--jobs", "0"], "--jobs", VALUES),
        (["demo", "--data", "mine"], "synthetic", VALUES),
        (["export", "surplus"], "surplus", VALUES),
        (["train", "-p"], "-p", VALUES),
        (["gate", "--seed", "1"], "--load-seed", NAMES),
    ],
)
def test_a_command_line_that_means_nothing_is_a_users_mistake_with_a_hint(gemcut, arguments, said, expected):
    code, out, err = gemcut(*arguments)
    assert (code, out) == (3, "")
    assert said in err
    assert f"expected {expected}" in err
    assert "--help" in err


def test_no_command_shows_the_help_and_is_a_mistake(gemcut):
    code, out, err = gemcut()
    assert code == 3
    assert "distill" in out + err


def test_a_command_line_that_means_nothing_is_told_to_machines_too(gemcut):
    code, out, _ = gemcut("prepare", "--projct", "x", "--json")
    assert code == 3
    assert "--projct" in json.loads(out.splitlines()[-1])["problems"][0]["got"]


@pytest.mark.parametrize("command", COMMANDS[:-1])
def test_no_project_file_is_named(gemcut, tmp_path, command):
    code, out, err = gemcut(command, "-p", tmp_path / "none.yaml")
    assert (code, out) == (3, "")
    assert str(tmp_path / "none.yaml") in err


def test_every_problem_is_printed_whole(gemcut, tiny_logs):
    deep = tiny_logs.path
    code, out, err = gemcut(
        "validate", "-p", deep, "--set", "placements.related_click.surface=hme",
        "--set", "placements.search_conversion.objectives=[clck]", "--json",
    )  # fmt: skip
    assert code == 3
    told = json.loads(out.splitlines()[-1])["problems"]
    assert {problem["where"] for problem in told} >= {
        f"{deep}: placements.related_click.surface",
        f"{deep}: placements.search_conversion.objectives.0",
    }
    for problem in told:
        assert all(text in err for text in problem.values()), "no line is broken and no bracket swallowed"


def test_brackets_in_a_problem_are_text(capsys):
    Screen().problems(UserError(Problem("[bold]x[/bold]", "[a, b]", "[/red]", "Write [c].")))
    assert [line.strip() for line in capsys.readouterr().err.splitlines()] == [
        "1 problem",
        "[bold]x[/bold]",
        "expected [a, b]",
        "got      [/red]",
        "Write [c].",
    ]


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ([], "neither"),
        (["--all", "--placement", "related_click"], "both"),
        (["--placement", "related", "--placement", "search"], "related"),
    ],
)
@pytest.mark.parametrize("command", ["distill", "export", "gate", "evaluate"])
def test_placements_are_named_or_all_are_meant(gemcut, tiny_logs, command, arguments, got):
    code, _, err = gemcut(command, "-p", tiny_logs.path, *arguments)
    assert code == 3
    assert f"got      {got}" in err
    assert "related_click" in err
    assert "search_conversion" in err


def test_a_command_ends_with_what_to_run_next_and_one_json_document(gemcut, tiny_logs):
    override = "placements.search_conversion.objectives=[click]"
    code, out, err = gemcut("validate", "-p", tiny_logs.path, "--set", override, "--json")
    assert code in (0, None)
    assert json.loads(out.splitlines()[-1])["sound"] is True
    assert err.splitlines()[-1] == f"next: gemcut prepare -p {tiny_logs.path} --set '{override}'"


@pytest.mark.parametrize(
    ("field", "value"), [("foundation.training.batch_requests", 10**6), ("foundation.training.threads", 1024)]
)
def test_validate_notes_what_is_allowed_and_hardly_meant(gemcut, tiny_logs, field, value):
    code, out, err = gemcut("validate", "-p", tiny_logs.path, "--set", f"{field}={value}", "--json")
    assert code in (0, None)
    [hint] = json.loads(out.splitlines()[-1])["hints"]
    assert hint.startswith(f"{field} is {value:,}")
    assert hint in err


def test_without_json_standard_output_is_empty(gemcut, tiny_logs):
    assert gemcut("validate", "-p", tiny_logs.path)[:2] in [(0, ""), (None, "")]


@pytest.mark.parametrize(
    ("command", "missing", "remedy"),
    [
        ("train", "store", "gemcut prepare"),
        ("label", "store", "gemcut prepare"),
        ("export", "store", "gemcut prepare"),
        ("gate", "bundles", "gemcut export"),
        ("evaluate", "store", "gemcut prepare"),
    ],
)
def test_a_step_too_early_says_what_comes_before_it(gemcut, tiny_logs, tmp_path, command, missing, remedy):
    project = tiny_logs.copy(tmp_path / "tiny")
    every = ["--all"] if command not in ("train", "label") else []
    code, _, err = gemcut(command, "-p", project.path, *every)
    assert code == 3
    assert str(project.work / missing) in err
    assert remedy in err


@pytest.mark.parametrize(
    ("command", "gone", "remedy"),
    [
        ("label", "foundation", "gemcut train"),
        ("distill", "foundation", "gemcut train"),
        ("export", "students", "gemcut distill"),
        ("evaluate", "students", "gemcut distill"),
        ("evaluate", "soft_labels", "gemcut label"),
    ],
)
def test_what_a_step_needs_of_an_earlier_one_is_asked_for(gemcut, tiny, tmp_path, command, gone, remedy):
    project = tiny.copy(tmp_path / "tiny", without=[gone])
    code, _, err = gemcut(command, "-p", project.path, *(["--all"] if command != "label" else []))
    assert code == 3
    assert remedy in err
    assert set(re.findall(r"`(gemcut [a-z]+)", err)) == {remedy}, "one command helps, and no other is named"


def test_a_seed_that_was_not_trained_is_asked_for(gemcut, tiny):
    code, _, err = gemcut("export", "-p", tiny.path, "--placement", "related_click", "--seed", "2")
    assert code == 3
    assert "`gemcut distill --placement related_click --seeds 3`" in err


def test_a_store_that_is_made_is_said_to_be(gemcut, tiny):
    for json_too in ([], ["--json"]):
        _, _, err = gemcut("prepare", "-p", tiny.path, *json_too)
        assert err.splitlines()[-2].endswith("already prepared from these tables")


def test_the_version_is_that_of_the_package(gemcut):
    assert gemcut("--version")[1] == f"gemcut {metadata.version('gemcut')}\n"


def test_the_module_is_the_program():
    told = [
        subprocess.run([*program, "prepair"], capture_output=True, text=True, check=False)
        for program in ([Path(sys.executable).with_name("gemcut")], [sys.executable, "-m", "gemcut"])
    ]
    assert [(run.returncode, run.stderr) for run in told] == [(3, told[0].stderr)] * 2


def test_help_needs_no_heavy_library():
    heavy = {"torch", "torchrec", "mlflow", "duckdb", "pyarrow"}
    program = f"import sys, gemcut.cli; print({heavy} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"
