"""`make check`: every kind of check, cheapest first; stops at the first that fails and says how to run only that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent

CHECKS = (
    ("format", ("ruff", "format", "--check", "."), "`make fix` writes it"),
    ("lint", ("ruff", "check", "."), "`make fix` mends what it safely can"),
    ("import contracts", ("lint-imports", "--no-logo"), "the contracts are in pyproject.toml"),
    ("types", ("pyright",), "what is checked how is in pyproject.toml"),
    ("tests", ("pytest", "-n", "2", "--dist", "loadfile"), "one test alone: .venv/bin/pytest PATH::NAME"),
)


def main() -> int:
    """Exit status of the first check that fails, 0 if none does."""
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    for kind, command, hint in CHECKS:
        print(f"check: {kind}", flush=True)
        start = time.monotonic()
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if status:
            print(f"check: {kind} failed. Only this: .venv/bin/{' '.join(command)}; {hint}", file=sys.stderr)
            return status
        print(f"check: {kind} passed in {time.monotonic() - start:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
