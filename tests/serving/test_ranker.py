"""Served probabilities against a slow sum over Python values, and what malformed requests get."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash

from serving.errors import BundleError, RequestError
from serving.ranker import Ranker
from serving.session import open_session

OBJECTIVES = ("click", "purchase")
TOLERANCE = 1e-6  # a dozen float32 additions
DAY = 86_400_000_000  # microseconds
NOW = 1_508_004_000_000_000


def int_row(value, table, buckets):
    """SplitMix64's finaliser in Python integers, from the formula in docs/ids.md."""
    if value is None:
        return 0
    z = (value % 2**64) ^ xxhash.xxh64_intdigest(table.encode())
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return 2 + (z ^ (z >> 31)) % buckets


def string_row(value, table, buckets):
    if value is None:
        return 0
    return 2 + xxhash.xxh64_intdigest(value.encode(), xxhash.xxh64_intdigest(table.encode())) % buckets


def number(value, *, shift=0.0, scale=1.0, log=False):
    if value is None or not math.isfinite(value):
        return 0.0
    value = math.copysign(math.log1p(abs(value)), value) if log else float(value)
    return min(max((value - shift) / scale, -10.0), 10.0)


def slow_probabilities(weights, request, histories, candidates):
    """[N][2], straight from the definition of the tiny model."""
    surfaces = {None: 0, "home": 2, "search": 3}
    shared = (
        weights["user"][int_row(request["user"], "user", 50)] + weights["surface"][surfaces.get(request["surface"], 1)]
    )
    shared = shared + number(request["hour"], shift=12.0, scale=6.0) * weights["hour"][0]
    events = histories.get("purchases", {"time": [], "item": [], "amount": []})
    known = zip(events["time"], events["item"], events["amount"], strict=True)
    newest = [event for event in known if event[0] < request["time"]][-4:]
    for time, item, amount in newest:
        event = weights["item"][int_row(item, "item", 97)] + number(amount, log=True) * weights["amount"][0]
        event = event + (request["time"] - time) / DAY * weights["age"][0]
        shared = shared + event / len(newest)
    rows = zip(candidates["item"], candidates["price"], candidates["department"], strict=True)
    return [
        1
        / (
            1
            + np.exp(
                -(
                    shared
                    + weights["item"][int_row(item, "item", 97)]
                    + weights["department"][string_row(department, "department", 20)]
                    + number(price, log=True) * weights["price"][0]
                )
            )
        )
        for item, price, department in rows
    ]


def assert_scores(ranker, tiny, request, histories, candidates):
    found = ranker.score(request, histories, candidates)
    expected = np.reshape(slow_probabilities(tiny.weights, request, histories, candidates), (-1, 2))
    assert tuple(found) == OBJECTIVES
    for place, objective in enumerate(OBJECTIVES):
        assert found[objective].dtype == np.float32
        np.testing.assert_allclose(found[objective], expected[:, place], atol=TOLERANCE)


def test_scores_are_those_of_the_definition(ranker, tiny, raw):
    assert_scores(ranker, tiny, raw.request, raw.histories, raw.candidates)


@pytest.mark.parametrize("num_candidates", [1, 2, 513, 1000])
def test_any_number_of_candidates_is_scored(ranker, tiny, raw, num_candidates):
    candidates = {
        "item": list(range(-5, num_candidates - 5)),
        "price": [i / 7 for i in range(num_candidates)],
        "department": [f"d{i % 31}" for i in range(num_candidates)],
    }
    assert_scores(ranker, tiny, raw.request, raw.histories, candidates)


@pytest.mark.parametrize("item", [-1, 0, 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), None])
def test_extreme_ids_are_scored(ranker, tiny, raw, item):
    candidates = {"item": [item, 7], "price": [0.0, 0.0], "department": ["a", "b"]}
    assert_scores(ranker, tiny, {**raw.request, "user": item}, raw.histories, candidates)


@pytest.mark.parametrize("price", [math.nan, math.inf, -math.inf, 1e308, -1e308, 0, -3.5, None])
def test_extreme_numbers_are_scored_and_the_infinite_count_as_missing(ranker, tiny, raw, price):
    candidates = {"item": [1], "price": [price], "department": ["a"]}
    assert_scores(ranker, tiny, {**raw.request, "hour": price}, raw.histories, candidates)


def test_every_value_may_be_missing(ranker, tiny):
    request = {"time": NOW, "user": None, "surface": None, "hour": None}
    histories = {"purchases": {"time": [NOW - DAY], "item": [None], "amount": [None]}}
    assert_scores(ranker, tiny, request, histories, {"item": [None], "price": [None], "department": [None]})


def test_an_unknown_listed_string_is_out_of_vocabulary_and_not_missing(ranker, tiny, raw):
    unknown = {**raw.request, "surface": "checkout"}
    assert_scores(ranker, tiny, unknown, raw.histories, raw.candidates)
    assert ranker.encode(unknown, raw.histories, raw.candidates)["request_ids"][0, 1] == 1
    assert ranker.encode({**unknown, "surface": None}, {}, raw.candidates)["request_ids"][0, 1] == 0


def test_an_absent_log_is_an_empty_history(ranker, tiny, raw):
    assert_scores(ranker, tiny, raw.request, {}, raw.candidates)
    empty = ranker.score(raw.request, {"purchases": {"time": [], "item": [], "amount": []}}, raw.candidates)
    absent = ranker.score(raw.request, {}, raw.candidates)
    np.testing.assert_array_equal(empty["click"], absent["click"])


def test_only_the_newest_events_count(ranker, tiny, raw):
    times = [NOW - DAY * days for days in (6, 5, 4, 3, 2, 1)]
    long = {"purchases": {"time": times, "item": [1, 2, 3, 4, 5, 6], "amount": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}}
    assert_scores(ranker, tiny, raw.request, long, raw.candidates)
    assert ranker.encode(raw.request, long, raw.candidates)["history_ids.purchases"].shape == (4, 1)


@pytest.mark.parametrize("later", [0, 1, DAY])
def test_events_at_or_after_the_request_are_not_used(ranker, tiny, raw, later):
    events = {"time": [NOW - DAY, NOW - 1, NOW + later, NOW + DAY], "item": [1, 2, 3, 4], "amount": [1.0] * 4}
    assert_scores(ranker, tiny, raw.request, {"purchases": events}, raw.candidates)
    feeds = ranker.encode(raw.request, {"purchases": events}, raw.candidates)
    assert feeds["history_ages.purchases"].tolist() == [1.0, np.float32(1 / DAY)]
    only_later = {"time": [NOW + later], "item": [1], "amount": [1.0]}
    assert_scores(ranker, tiny, raw.request, {"purchases": only_later}, raw.candidates)


@pytest.mark.parametrize("time", [None, "2026", 1.5, True, 2**63, [NOW]])
def test_a_request_without_a_whole_time_is_refused(ranker, raw, time):
    (problem,) = problems_of(ranker, {**raw.request, "time": time}, raw.histories, raw.candidates)
    assert problem.where == "request.time"


@pytest.mark.parametrize("times", [[2, 1], [1, None], [None, None], ["1", "2"], [1.5, 2.0]])
def test_events_out_of_order_or_without_a_time_are_refused(ranker, raw, times):
    events = {"time": times, "item": [1, 2], "amount": [1.0, 2.0]}
    (problem,) = problems_of(ranker, raw.request, {"purchases": events}, raw.candidates)
    assert problem.where.startswith("histories.purchases.time")


def test_columns_of_times_may_be_arrays_of_any_integers(ranker, raw):
    events = raw.histories["purchases"]
    expected = ranker.encode(raw.request, raw.histories, raw.candidates)["history_ages.purchases"].tolist()
    for times in (np.array(events["time"]), np.array(events["time"], dtype=np.uint64), np.array(events["time"], float)):
        feeds = ranker.encode(raw.request, {"purchases": {**events, "time": times}}, raw.candidates)
        assert feeds["history_ages.purchases"].tolist() == expected


def test_no_candidates_give_empty_arrays(ranker, raw):
    scores = ranker.score(raw.request, raw.histories, {"item": [], "price": [], "department": []})
    assert {name: (array.shape, array.dtype) for name, array in scores.items()} == {
        name: ((0,), np.dtype(np.float32)) for name in OBJECTIVES
    }


@pytest.mark.parametrize(
    "column",
    [
        np.array([3, -1, 9]),
        np.array([3, -1, 9], dtype=np.int16),
        np.array([3, -1, 9], dtype=">i8"),
        np.array([3, 2**64 - 1, 9], dtype=np.uint64),
        np.array([3.0, -1.0, 9.0]),
        np.array([3, -1, 9], dtype=object),
        np.arange(18)[::6] * 0 + np.array([3, -1, 9]),
        (3, -1, 9),
        [np.int64(3), np.int8(-1), 9.0],
        [3, 2**64 - 1, 9],
    ],
)
def test_columns_of_every_sort_of_integer_mean_the_same(ranker, raw, column):
    rest = {"price": np.array([1.0, np.nan, 2.0], dtype=np.float32), "department": np.array(["a", "b", "c"])}
    found = ranker.encode(raw.request, {}, {"item": column, **rest})
    plain = {"item": [3, -1, 9], "price": [1.0, None, 2.0], "department": ["a", "b", "c"]}
    for name, expected in ranker.encode(raw.request, {}, plain).items():
        np.testing.assert_array_equal(found[name], expected)


def test_encode_then_score_arrays_is_score(ranker, raw):
    feeds = ranker.encode(raw.request, raw.histories, raw.candidates)
    assert {name: (array.dtype.name, array.shape) for name, array in feeds.items()} == {
        "request_ids": ("int64", (1, 2)),
        "request_numbers": ("float32", (1, 1)),
        "candidate_ids": ("int64", (3, 2)),
        "candidate_numbers": ("float32", (3, 1)),
        "history_ids.purchases": ("int64", (2, 1)),
        "history_numbers.purchases": ("float32", (2, 1)),
        "history_ages.purchases": ("float32", (2,)),
    }
    whole, parts = ranker.score(raw.request, raw.histories, raw.candidates), ranker.score_arrays(feeds)
    for objective in OBJECTIVES:
        np.testing.assert_array_equal(whole[objective], parts[objective])


def problems_of(ranker, request, histories, candidates):
    with pytest.raises(RequestError) as error:
        ranker.score(request, histories, candidates)
    return error.value.problems


@pytest.mark.parametrize(
    "value", ["17", True, 1.5, math.inf, 2**64, -(2**63) - 1, b"1", [1], 1e300, np.bool_(True), np.float64(0.1), 1j]
)
def test_a_value_that_is_no_integer_id_is_refused_with_its_place(ranker, raw, value):
    (problem,) = problems_of(ranker, raw.request, {}, {"item": [1, value], "price": [1, 1], "department": ["", ""]})
    assert problem.where == "candidates.item[1]"


@pytest.mark.parametrize("value", [3, 1.0, True, b"home", ["home"]])
def test_a_value_that_is_no_string_is_refused_with_its_place(ranker, raw, value):
    (problem,) = problems_of(ranker, {**raw.request, "surface": value}, {}, raw.candidates)
    assert problem.where == "request.surface[0]"


@pytest.mark.parametrize("value", ["3", True, b"1", [1.0], 1j])
def test_a_value_that_is_no_number_is_refused_with_its_place(ranker, raw, value):
    (problem,) = problems_of(ranker, {**raw.request, "hour": value}, {}, raw.candidates)
    assert problem.where == "request.hour[0]"


def test_an_integer_beyond_float64_is_refused_as_a_number(ranker, raw):
    (problem,) = problems_of(ranker, {**raw.request, "hour": 10**400}, {}, raw.candidates)
    assert problem.where == "request.hour"


def test_half_a_surrogate_pair_is_refused(ranker, raw):
    (problem,) = problems_of(ranker, {**raw.request, "surface": "a\ud800"}, {}, raw.candidates)
    assert problem.where == "request.surface"


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("item", np.array([True, False, True])),
        ("item", np.array(["2026-01-01"] * 3, dtype="M8[ns]")),
        ("item", np.array(["1", "2", "3"])),
        ("price", np.array([True, False, True])),
        ("price", np.array([1j, 2j, 3j])),
        ("department", np.array([1, 2, 3])),
        ("department", np.array([b"a", b"b", b"c"])),
        ("item", np.zeros((3, 1), dtype=np.int64)),
        ("department", "abc"),
        ("item", {1: 2}),
        ("item", 5),
    ],
)
def test_columns_of_other_types_are_refused_by_name(ranker, raw, name, column):
    (problem,) = problems_of(ranker, raw.request, {}, {**raw.candidates, name: column})
    assert problem.where == f"candidates.{name}"


def test_a_misspelt_feature_names_the_nearest(ranker, raw):
    candidates = {"item": [1], "prise": [1.0], "department": ["a"]}
    problems = problems_of(ranker, raw.request, {}, candidates)
    assert ["'prise'" in problems[0].got, "`price`" in problems[0].remedy] == [True, True]
    assert "`price`" in problems[1].expected


def test_a_misspelt_log_names_the_nearest(ranker, raw):
    (problem,) = problems_of(ranker, raw.request, {"purchase": {}}, raw.candidates)
    assert "`purchases`" in problem.remedy


def test_a_log_without_one_of_its_features_is_refused(ranker, raw):
    (problem,) = problems_of(ranker, raw.request, {"purchases": {"time": [1], "item": [1]}}, raw.candidates)
    assert "`amount`" in problem.expected


def test_ragged_columns_are_refused_even_where_only_the_newest_would_be_used(ranker, raw):
    ragged = {"purchases": {"time": list(range(8)), "item": list(range(8)), "amount": [1.0] * 9}}
    (problem,) = problems_of(ranker, raw.request, ragged, raw.candidates)
    assert problem.where == "histories.purchases"
    (problem,) = problems_of(ranker, raw.request, {}, {**raw.candidates, "price": [1.0]})
    assert problem.where == "candidates"


def test_too_many_candidates_are_refused(ranker, raw):
    columns = {"item": [1] * 1001, "price": [1.0] * 1001, "department": ["a"] * 1001}
    (problem,) = problems_of(ranker, raw.request, {}, columns)
    assert (problem.expected, problem.got) == ("at most 1000", "1001")


@pytest.mark.parametrize("broken", [None, [], "x", 3])
def test_groups_that_are_no_mappings_are_refused(ranker, raw, broken):
    assert problems_of(ranker, broken, {}, raw.candidates)
    assert problems_of(ranker, raw.request, broken, raw.candidates)
    assert problems_of(ranker, raw.request, {"purchases": broken}, raw.candidates)
    assert problems_of(ranker, raw.request, {}, broken)


def test_every_problem_of_a_request_is_listed(ranker, raw):
    request = {"time": NOW, "user": "x", "surface": 1, "hour": "noon"}
    histories = {"clicks": {}, "purchases": {"time": [NOW - 1], "item": [True], "amount": ["much"]}}
    problems = problems_of(ranker, request, histories, {**raw.candidates, "item": [1.5, 2, 3]})
    assert sorted(problem.where for problem in problems) == [
        "candidates.item[0]",
        "histories",
        "histories.purchases.amount[0]",
        "histories.purchases.item[0]",
        "request.hour[0]",
        "request.surface[0]",
        "request.user[0]",
    ]


def test_threads_may_share_a_ranker(ranker, raw):
    users = range(200)

    def score(user):
        return ranker.score({**raw.request, "user": user}, raw.histories, raw.candidates)["click"].tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(score, users)) == [score(user) for user in users]


def test_a_damaged_weight_does_not_become_a_ranking(tiny, tmp_path, raw):
    weights = {**tiny.weights, "hour": np.full((1, 2), np.nan, dtype=np.float32)}
    damaged = Ranker.load(tiny.write(tmp_path / "bundle", weights=weights))
    with pytest.raises(BundleError, match="nan"):
        damaged.score(raw.request, raw.histories, raw.candidates)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_that_are_no_probabilities_are_refused(tiny, tmp_path, raw, sign):
    weights = {name: np.zeros_like(table) for name, table in tiny.weights.items()}
    weights["price"] = np.full((1, 2), 3.0 * sign, dtype=np.float32)
    logits = Ranker.load(tiny.write(tmp_path / "bundle", weights=weights, last="Identity"))
    with pytest.raises(BundleError, match=r"\[0, 1\]"):
        logits.score(raw.request, {}, raw.candidates)


def test_a_graph_of_another_manifest_is_refused_with_every_difference(tiny, tmp_path):
    def change(manifest):
        manifest["candidate"].pop(0)
        manifest["request"].append({"kind": "number", "name": "age", "rule": {}})
        manifest["histories"][0]["features"][0]["table"] = "nothing"

    folder = tiny.write(tmp_path / "bundle", change_manifest=change)
    with pytest.raises(BundleError) as error:
        Ranker.load(folder)
    assert [problem.where for problem in error.value.problems] == [
        "model.onnx: input candidate_ids",
        "model.onnx: input request_numbers",
        "manifest.json: histories.purchases.item",
    ]


def test_bytes_that_the_runtime_refuses_are_the_bundles_fault(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"model\.onnx"):
        open_session(tmp_path / "model.onnx")
