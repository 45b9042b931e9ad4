"""Code stays readable by budget: ceilings that hold for each file and function, aims that hold for nearly all."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gemcut", "transfer", "foundation", "eval", "serving")

FILE_LINES_CEILING, FILE_LINES_AIM = 600, 400
FUNCTION_LINES_CEILING, FUNCTION_LINES_AIM = 80, 45
SHARE_WITHIN_AIM = 0.95


def product_files():
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def file_lengths():
    return {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in product_files()}


def lines_without_docstring(function):
    body = function.body
    first = body[1] if ast.get_docstring(function) is not None and len(body) > 1 else body[0]
    return function.end_lineno - first.lineno + 1


def function_lengths():
    return {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": lines_without_docstring(node)
        for path in product_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


@pytest.mark.parametrize(
    ("lengths", "ceiling"), [(file_lengths, FILE_LINES_CEILING), (function_lengths, FUNCTION_LINES_CEILING)]
)
def test_nothing_is_longer_than_its_ceiling(lengths, ceiling):
    assert {place: lines for place, lines in lengths().items() if lines > ceiling} == {}


@pytest.mark.parametrize(("lengths", "aim"), [(file_lengths, FILE_LINES_AIM), (function_lengths, FUNCTION_LINES_AIM)])
def test_nearly_everything_is_within_its_aim(lengths, aim):
    longest_first = sorted(lengths().items(), key=lambda item: -item[1])
    too_long = [item for item in longest_first if item[1] > aim]
    assert len(too_long) <= (1 - SHARE_WITHIN_AIM) * len(longest_first), too_long


def test_a_docstring_does_not_count_as_length():
    function = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n').body[0]
    assert lines_without_docstring(function) == 1
