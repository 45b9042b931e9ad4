"""Make the four tables of this example: `python examples/complete_journey/make_data.py [--out DIR]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gemcut.demo_data.complete_journey import make_data
from serving.errors import UserError


def main() -> int:
    """Make the tables; 0 when they are there, 3 when something of the caller's is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data", help="folder for the tables")
    arguments = parser.parse_args()
    try:
        make_data(arguments.out, progress=lambda text: print(text, file=sys.stderr))
    except UserError as error:
        print(error, file=sys.stderr)
        return 3
    print(f"wrote impressions, events, items and users to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
