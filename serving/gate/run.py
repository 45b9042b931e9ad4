"""The gate: one fresh process measures, this one waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from serving import errors
from serving.errors import BundleError, Problem, UserError
from serving.gate.policy import Budget
from serving.gate.report import Verdict
from serving.gate.worker import USER_ERROR

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_SPARE_S = 120.0  # for start, verification, warm-up and one slow request
_KINDS = {kind.__name__: kind for kind in (errors.BundleError, errors.RequestError, errors.MismatchError)}


def run_gate(bundle_folder: Path | str, requests_file: Path | str, budget: Budget, seed: int) -> Verdict:
    """Whether the student in a bundle keeps its budget on this host.

    A fresh process with one thread, on one processor where that can be chosen, answers logged requests (raw features
    to probabilities) at the budget's rate, timed from their scheduled arrival; this process sleeps meanwhile.

    Args:
        bundle_folder: a bundle.
        requests_file: real requests of the placement, `requests.jsonl` of docs/bundle.md.
        budget: the limit, and how it is judged.
        seed: of arrivals and draws; the same seed makes the same load.

    Returns:
        The verdict; docs/latency-gate.md says what it means.

    Raises:
        BundleError: the bundle is refused, or its measuring process died or never ended.
        RequestError: the requests are not the bundle's.
    """
    command = [sys.executable, "-m", "serving.gate.worker", str(bundle_folder), str(requests_file)]
    command += ["--budget", budget.model_dump_json(), "--seed", str(seed)]
    longest_s = 2 * budget.max_duration_s + budget.limit_ms / 1e3 + _SPARE_S
    try:
        done = subprocess.run(  # noqa: S603 - our own module, and no shell
            command,
            env=os.environ | _ONE_THREAD,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=longest_s,
        )
    except subprocess.TimeoutExpired as error:
        raise _died(bundle_folder, f"no end after {longest_s:.0f} s") from error
    lines = done.stdout.splitlines()
    if done.returncode == USER_ERROR and lines:
        document = json.loads(lines[-1])
        raise _KINDS.get(document["error"], UserError)([Problem(**problem) for problem in document["problems"]])
    if done.returncode != 0 or not lines:
        raise _died(bundle_folder, _ending(done))
    return Verdict.model_validate_json(lines[-1])


def _died(bundle_folder: Path | str, how: str) -> BundleError:
    remedy = "Export the bundle again; if it dies again, the graph is at fault."
    return BundleError(Problem(str(bundle_folder), "a bundle that can be measured", how, remedy))


def _ending(done: subprocess.CompletedProcess[str]) -> str:
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode < 0:
        return f"the measuring process ended by {signal.Signals(-done.returncode).name} ({last})"
    return f"the measuring process ended with {done.returncode} ({last})"
