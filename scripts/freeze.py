"""Write the exact version of every distribution in this environment to constraints.txt.

Run it after a deliberate upgrade, by `make constraints`. What only other machines install (the CUDA build of the
kernels) keeps the line it has.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
# gemcut is what is developed, pip came with Python, and torch's CUDA build pins its own parts.
NOT_PINNED = re.compile(r"(gemcut|pip|triton|nvidia-.*|cuda-.*)\Z")
HEADER = "# Exact versions of everything that `make setup` installs; written by `make constraints`.\n"


def canonical(name: str) -> str:
    """The name as package indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Name to version of the lines `name==version`."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def installed() -> dict[str, str]:
    """Name to version in this environment, without local parts such as +cpu: any build of a version is welcome."""
    found = {canonical(item.metadata["Name"]): item.version.split("+")[0] for item in distributions()}
    return {name: version for name, version in found.items() if not NOT_PINNED.match(name)}


def main() -> None:
    """Write the file; names in order, one a line."""
    versions = pins(CONSTRAINTS.read_text()) | installed()
    CONSTRAINTS.write_text(HEADER + "".join(f"{name}=={versions[name]}\n" for name in sorted(versions)))


if __name__ == "__main__":
    main()
