"""The measuring process, started by `run_gate`: `python -m serving.gate.worker`, one thread and nothing else in it."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from serving.bundle import load_bundle
from serving.errors import RequestError, UserError
from serving.gate import host as hosts
from serving.gate.clock import Clock, MonotonicClock
from serving.gate.load import Load, RawRequest, make_load
from serving.gate.measure import Timings, closed_loop, null_system, open_loop, run_open_loop
from serving.gate.policy import Budget
from serving.gate.report import Record, Run, Verdict, verdict_of
from serving.ranker import Ranker
from serving.session import open_session

USER_ERROR = 3
_LONGEST_SHORT_S = 1.0


def measure_bundle(bundle_folder: Path, requests_file: Path, *, budget: Budget, seed: int) -> Verdict:
    """Judge a bundle in this process; `run_gate` does it in one of its own."""
    clock = MonotonicClock()
    pinned_cpu = hosts.pin_to_one_cpu()
    begun_ns = clock.now_ns()
    bundle = load_bundle(bundle_folder)
    ranker = Ranker(bundle.manifest, open_session(bundle.model))
    load_ms = (clock.now_ns() - begun_ns) / 1e6
    load = make_load(requests_file, budget, seed)
    check_pool(ranker, load)

    def answer(raw: RawRequest) -> object:
        return ranker.score(raw.request, raw.histories, raw.candidates)

    gc.collect()
    gc.freeze()  # the pool belongs to the harness: collections during the run must not walk it
    short_s = min(_LONGEST_SHORT_S, budget.max_duration_s / 4)
    warm_up = closed_loop(answer, load.pool, clock=clock, duration_ns=round(short_s * 1e9))
    before = hosts.calibrate()
    null = _null_loop(load, clock=clock, duration_s=short_s)
    closed = closed_loop(answer, load.pool, clock=clock, duration_ns=round(short_s * 1e9))
    earlier = hosts.usage()
    opened, plan = run_open_loop(answer, load.requests, load.arrivals_s, budget=budget, clock=clock)
    used = hosts.usage().since(earlier)
    host = hosts.describe(pinned_cpu=pinned_cpu, before=before, after=hosts.calibrate(), used=used)
    record = Record(
        bundle_digest=bundle.digest,
        requests_digest=hashlib.sha256(requests_file.read_bytes()).hexdigest(),
        load_ms=load_ms,
        peak_memory_bytes=hosts.peak_memory_bytes(),
    )
    num_candidates = [raw.num_candidates for raw in load.pool]
    return verdict_of(Run(budget, seed, plan, warm_up, null, closed, opened, host, num_candidates, record))


def check_pool(ranker: Ranker, load: Load) -> None:
    """Refuse requests that are not the bundle's: a wrong file is the user's mistake, not a failing student.

    Raises:
        RequestError: naming file and line of every such request.
    """
    problems = []
    for raw in load.pool:
        try:
            ranker.encode(raw.request, raw.histories, raw.candidates)
        except RequestError as error:
            problems += [replace(problem, where=f"{raw.where}: {problem.where}") for problem in error.problems]
    if problems:
        raise RequestError(problems)


def _null_loop(load: Load, *, clock: Clock, duration_s: float) -> Timings:
    """The harness alone, on the first of the very same arrivals."""
    arrivals_ns = (load.arrivals_s[load.arrivals_s < duration_s] * 1e9).astype("int64")
    return open_loop(
        null_system,
        load.requests[: len(arrivals_ns)],
        arrivals_ns,
        clock=clock,
        limit_ns=sys.maxsize,
        looks=(len(arrivals_ns),),
        decided=lambda *_: True,
    )


def main(arguments: list[str]) -> int:
    """Measure, and print the verdict (or the user's mistakes) as one JSON document, the last line of the output."""
    parser = argparse.ArgumentParser(prog="python -m serving.gate.worker")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("requests", type=Path)
    parser.add_argument("--budget", required=True, type=Budget.model_validate_json)
    parser.add_argument("--seed", required=True, type=int)
    given = parser.parse_args(arguments)
    try:
        verdict = measure_bundle(given.bundle, given.requests, budget=given.budget, seed=given.seed)
    except UserError as error:
        document = {"error": type(error).__name__, "problems": [asdict(problem) for problem in error.problems]}
        sys.stdout.write(json.dumps(document) + "\n")
        return USER_ERROR
    sys.stdout.write(verdict.model_dump_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
