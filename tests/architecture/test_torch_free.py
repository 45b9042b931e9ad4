"""serving and eval run where torch is not installed: every module of theirs, run-time imports by name included."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, pkgutil, sys
for name in ("torch", "torchrec", "fbgemm_gpu", "tensordict", "mlflow", "onnx", "onnxscript"):
    sys.modules[name] = None  # an import of it raises ImportError, as where it is not installed
root = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
    importlib.import_module(module.name)
"""


@pytest.mark.parametrize("package", ["serving", "eval"])
def test_every_module_imports_without_torch(package):
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, package], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_check_itself_notices_torch():
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, "foundation"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: import of torch" in run.stderr
