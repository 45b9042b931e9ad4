"""What the gate asks, and when: requests of the placement's own log, at seeded Poisson arrivals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import Problem, RequestError, UserError, shortened
from serving.gate.policy import Budget

_POOL = 256  # distinct requests of one run; more would measure the memory of Python lists
_MOST_ARRIVALS = 5_000_000
_WANTED = {"request": dict, "histories": dict, "candidates": dict}


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A logged request as raw features; `docs/bundle.md` describes the parts.

    Attributes:
        where: file and line it came from.
    """

    where: str
    request: dict[str, Any]
    histories: dict[str, dict[str, list[Any]]]
    candidates: dict[str, list[Any]]

    @property
    def num_candidates(self) -> int:
        """Length of the longest candidate column."""
        return max(map(len, self.candidates.values()), default=0)


def poisson_arrivals(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrivals in seconds in [0, duration_s), ascending, independent of each other.

    Raises:
        UserError: more arrivals than one run can hold.
    """
    if rate_per_s * duration_s > _MOST_ARRIVALS:
        raise UserError(
            Problem(
                "budget",
                f"at most {_MOST_ARRIVALS} arrivals a run",
                f"{rate_per_s:g} a second for {duration_s:g} s",
                "Lower `rate_per_s` to what one worker process serves, or `max_duration_s`.",
            )
        )
    # Given their number, the moments of a Poisson process are uniform.
    count = rng.poisson(rate_per_s * duration_s)
    return np.sort(rng.uniform(0.0, duration_s, size=count))


def read_pool(path: Path, *, candidates: int | None, rng: np.random.Generator) -> list[RawRequest]:
    """Distinct requests to draw from: a seeded sample of a `requests.jsonl`.

    Args:
        path: the file.
        candidates: resize every request to this number of candidates, its own rows repeated in turn; requests without
            any are left out. As logged if None.
        rng: chooses among the lines.

    Raises:
        RequestError: the file is missing or empty, or a chosen line is not a request.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        remedy = "Name the `requests.jsonl` that the export wrote."
        raise RequestError(Problem(str(path), "a file of requests", str(error.strerror), remedy)) from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    chosen = rng.permutation(len(numbered))[:_POOL] if len(numbered) > _POOL else range(len(numbered))
    pool = [parse_request(numbered[place][1], where=f"{path}:{numbered[place][0]}") for place in chosen]
    if candidates is not None:
        pool = [resized(request, candidates) for request in pool if request.num_candidates]
    if not pool:
        got = "none" if not numbered else "none with a candidate"
        raise RequestError(
            Problem(str(path), "at least one request", got, "Export the bundle from a store with requests.")
        )
    return pool


def parse_request(line: bytes, *, where: str) -> RawRequest:
    """One line of a `requests.jsonl`.

    Raises:
        RequestError: not JSON, or not the three parts of a request.
    """
    remedy = "See docs/bundle.md for the form of a line."
    try:
        parts = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(Problem(where, "a JSON object", str(error), remedy)) from error
    names = ", ".join(_WANTED)
    if not isinstance(parts, dict) or parts.keys() != _WANTED.keys():
        got = ", ".join(parts) if isinstance(parts, dict) else shortened(parts)
        raise RequestError(Problem(where, f"an object of {names}", got, remedy))
    columns = [*parts["candidates"].values()] if isinstance(parts["candidates"], dict) else [None]
    if not all(isinstance(part, dict) for part in parts.values()) or not all(isinstance(c, list) for c in columns):
        raise RequestError(Problem(where, f"{names}: objects, with lists of candidates", shortened(parts), remedy))
    return RawRequest(where, parts["request"], parts["histories"], parts["candidates"])


def resized(request: RawRequest, candidates: int) -> RawRequest:
    """The same request with this many candidates: its own rows, repeated in turn or cut."""
    repeats = -(-candidates // max(request.num_candidates, 1))
    columns = {name: (column * repeats)[:candidates] for name, column in request.candidates.items()}
    return replace(request, candidates=columns)


@dataclass(frozen=True, slots=True)
class Load:
    """A seeded run: what arrives when.

    Attributes:
        arrivals_s: [n] seconds from the start.
        requests: [n], drawn with replacement from `pool`.
        pool: distinct requests.
    """

    arrivals_s: NDArray[np.float64]
    requests: Sequence[RawRequest]
    pool: Sequence[RawRequest]


def make_load(requests_file: Path, budget: Budget, seed: int) -> Load:
    """The load of one run; equal arguments make an equal load. Errors: `read_pool`, `poisson_arrivals`."""
    arrival_seed, pool_seed, draw_seed = np.random.SeedSequence(seed).spawn(3)
    arrivals_s = poisson_arrivals(budget.rate_per_s, budget.max_duration_s, np.random.default_rng(arrival_seed))
    pool = read_pool(requests_file, candidates=budget.candidates, rng=np.random.default_rng(pool_seed))
    drawn = np.random.default_rng(draw_seed).integers(len(pool), size=len(arrivals_s))
    return Load(arrivals_s, [pool[place] for place in drawn], pool)
