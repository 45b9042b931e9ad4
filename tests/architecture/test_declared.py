"""What the product imports is declared, not merely there because something else brought it."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
OURS = ("gemcut", "transfer", "foundation", "eval", "serving")
# By pydantic, whose types they are; by scripts/setup.sh, without their dependencies.
BROUGHT = {"annotated-types", "pydantic-core", "torchrec", "fbgemm-gpu-cpu"}


def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {Requirement(line).name.lower() for lines in lists for line in lines} | BROUGHT


def imported(package):
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", OURS)
def test_every_library_that_a_package_imports_is_declared(package):
    distributions = packages_distributions()
    outside = {name for name in imported(package) if name not in sys.stdlib_module_names and name not in OURS}
    unknown = {
        name for name in outside if not {d.lower().replace("_", "-") for d in distributions.get(name, [])} & declared()
    }
    assert not unknown
