"""Loads: seeded, Poisson, of the placement's own requests; files that hold none are refused."""

import json

import numpy as np
import pytest

from serving.errors import RequestError, UserError
from serving.gate.load import make_load, parse_request, poisson_arrivals, read_pool, resized
from serving.gate.policy import Budget

BUDGET = Budget(limit_ms=10.0, rate_per_s=200.0)


def line(number, num_candidates=3):
    candidates = {"item": [100 * number + place for place in range(num_candidates)], "price": [None] * num_candidates}
    return json.dumps({"request": {"user": number}, "histories": {}, "candidates": candidates})


@pytest.fixture
def requests_file(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(line(number) for number in range(10)) + "\n\n")
    return path


def test_equal_seeds_make_equal_loads_and_others_do_not(requests_file):
    one, same, other = (make_load(requests_file, BUDGET, seed) for seed in (1, 1, 2))
    assert one.arrivals_s.tolist() == same.arrivals_s.tolist()
    assert one.requests == same.requests
    assert one.arrivals_s.tolist() != other.arrivals_s.tolist()
    assert {request.request["user"] for request in one.requests} == set(range(10))


def test_arrivals_are_poisson():
    arrivals = poisson_arrivals(1000.0, 60.0, np.random.default_rng(5))
    # 60,000 expected: the mean gap is known to 0.4 %, its deviation equals its mean, the count deviates by its root.
    assert abs(len(arrivals) - 60_000) < 4 * 60_000**0.5
    gaps = np.diff(arrivals)
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1e-3, rel=0.02)
    assert gaps.std() == pytest.approx(1e-3, rel=0.03)
    assert 0 <= arrivals[0] <= arrivals[-1] < 60.0


def test_more_arrivals_than_a_run_can_hold_are_refused():
    with pytest.raises(UserError, match="rate_per_s"):
        poisson_arrivals(1e9, 60.0, np.random.default_rng(0))


def test_requests_keep_their_candidates_unless_the_budget_fixes_a_number(requests_file):
    as_logged = read_pool(requests_file, candidates=None, rng=np.random.default_rng(0))
    assert [request.num_candidates for request in as_logged] == [3] * 10
    fixed = read_pool(requests_file, candidates=7, rng=np.random.default_rng(0))
    assert fixed[2].candidates["item"] == [200, 201, 202, 200, 201, 202, 200]
    assert fixed[2].candidates["price"] == [None] * 7


def test_resizing_cuts_too(requests_file):
    request = parse_request(line(1, 5).encode(), where="")
    assert resized(request, 2).candidates["item"] == [100, 101]


def test_requests_without_candidates_can_not_be_resized_and_are_left_out(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text(line(1, 0) + "\n" + line(2) + "\n")
    rng = np.random.default_rng(0)
    assert [request.request["user"] for request in read_pool(path, candidates=4, rng=rng)] == [2]
    assert [request.num_candidates for request in read_pool(path, candidates=None, rng=rng)] == [0, 3]
    path.write_text(line(1, 0))
    with pytest.raises(RequestError, match="none with a candidate"):
        read_pool(path, candidates=4, rng=rng)


def test_a_long_file_is_sampled_by_the_seed(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(line(number) for number in range(2000)))

    def users(seed):
        return [r.request["user"] for r in read_pool(path, candidates=None, rng=np.random.default_rng(seed))]

    assert users(1) == users(1) != users(2)
    assert len(set(users(1))) == 256
    assert max(users(1)) > 1000


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_requests_is_refused(tmp_path, content):
    path = tmp_path / "requests.jsonl"
    path.write_text(content)
    with pytest.raises(RequestError, match=r"requests\.jsonl"):
        read_pool(path, candidates=None, rng=np.random.default_rng(0))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(RequestError, match="No such file"):
        read_pool(tmp_path / "nothing.jsonl", candidates=None, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"3",
        b"\xff",
        b'{"request": {}, "candidates": {}}',
        b'{"request": {}, "histories": {}, "candidates": {}, "label": 1}',
        b'{"request": [], "histories": {}, "candidates": {}}',
        b'{"request": {}, "histories": {}, "candidates": {"item": 3}}',
        b'{"request": {}, "histories": {}, "candidates": [1]}',
    ],
)
def test_a_line_that_is_no_request_is_refused_with_its_place(content):
    with pytest.raises(RequestError, match="file:12"):
        parse_request(content, where="file:12")
