"""The gate from end to end, in its own process, on the tiny bundle."""

import hashlib
import json
import shutil

import pytest

from serving.errors import BundleError, RequestError
from serving.gate.policy import Budget
from serving.gate.run import run_gate

SHORT = {"rate_per_s": 300.0, "candidates": 16, "min_duration_s": 0.5, "max_duration_s": 2.0}


@pytest.fixture(scope="module")
def requests_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    with path.open("w") as file:
        for number in range(1, 20):
            candidates = {"item": list(range(number)), "price": [1.5] * number, "department": ["DELI"] * number}
            histories = {"purchases": {"time": [7] * number, "item": [3] * number, "amount": [2.0] * number}}
            request = {"time": 10**12, "user": number, "surface": "home", "hour": number}
            file.write(json.dumps({"request": request, "histories": histories, "candidates": candidates}) + "\n")
    return path


def test_a_generous_limit_passes_with_a_whole_record(bundle_folder, requests_file):
    found = run_gate(bundle_folder, requests_file, Budget(limit_ms=1000.0, **SHORT), seed=1)
    assert (found.verdict, found.exit_code) == ("PASS", 0), found.reasons
    assert found.num_requests in found.looks
    assert (found.num_failed, found.num_unanswered, found.num_distinct) == (0, 0, 19)
    assert (found.median_candidates, found.max_candidates) == (16, 16)
    assert found.record.bundle_digest == hashlib.sha256((bundle_folder / "manifest.json").read_bytes()).hexdigest()
    assert found.record.requests_digest == hashlib.sha256(requests_file.read_bytes()).hexdigest()
    assert sum(block.num_requests for block in found.blocks if block) == found.num_requests
    assert found.null_loop.num_requests > 0
    assert found.host.threads == 1


def test_an_impossible_limit_fails(bundle_folder, requests_file):
    found = run_gate(bundle_folder, requests_file, Budget(limit_ms=0.001, **SHORT), seed=1)
    assert (found.verdict, found.exit_code) == ("FAIL", 1), found.reasons
    assert found.num_over == found.num_requests
    assert found.closed_loop.min_ms > 0.002


def test_mistakes_of_the_user_cross_the_process(bundle_folder, requests_file, tmp_path):
    budget = Budget(limit_ms=1000.0, **SHORT)
    with pytest.raises(RequestError, match=r"nothing\.jsonl"):
        run_gate(bundle_folder, tmp_path / "nothing.jsonl", budget, seed=1)
    damaged = shutil.copytree(bundle_folder, tmp_path / "damaged")
    (damaged / "model.onnx").write_bytes(b"")
    with pytest.raises(BundleError, match=r"model\.onnx: expected \d+ bytes; got 0 bytes"):
        run_gate(damaged, requests_file, budget, seed=1)


@pytest.mark.parametrize(
    ("ending", "message"),
    [("kill -SEGV $$", "SIGSEGV"), ("echo broken >&2; exit 7", r"ended with 7 \(broken\)"), ("exit 0", "ended with 0")],
)
def test_a_process_that_dies_is_reported_and_not_taken_for_a_verdict(
    bundle_folder, requests_file, tmp_path, monkeypatch, ending, message
):
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\n{ending}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(stand_in))
    with pytest.raises(BundleError, match=message):
        run_gate(bundle_folder, requests_file, Budget(limit_ms=1000.0, **SHORT), seed=1)


def test_requests_of_another_bundle_are_refused_by_line_and_not_failed(bundle_folder, tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text('{"request": {"time": 5, "user": 1, "hour": 2}, "histories": {}, "candidates": {"item": [1]}}\n')
    with pytest.raises(RequestError) as error:
        run_gate(bundle_folder, path, Budget(limit_ms=1000.0, **SHORT), seed=1)
    assert [problem.where for problem in error.value.problems] == [
        f"{path}:1: request",
        f"{path}:1: candidates",
        f"{path}:1: candidates",
    ]
