"""Make the tables of this example: `python examples/synthetic/make_data.py [--out DIR] [--requests N] [--seed S]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gemcut.demo_data.synthetic import NUM_REQUESTS, make_data


def main() -> int:
    """Make the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data", help="folder for the tables")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS, help="number of requests, about 10 rows each")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same bytes")
    arguments = parser.parse_args()
    if arguments.requests < 1 or arguments.seed < 0:
        parser.error("expected --requests of at least 1 and --seed of at least 0")
    make_data(
        arguments.out,
        progress=lambda text: print(text, file=sys.stderr),
        num_requests=arguments.requests,
        seed=arguments.seed,
    )
    print(f"wrote impressions, events, items, users and truth to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
