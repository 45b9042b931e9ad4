"""A bundle small enough to work out by hand: its scores are sums of table rows."""

import copy
import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

TABLES = {
    "user": {"type": "int", "buckets": 50},
    "surface": {"type": "string", "values": ["home", "search"]},
    "item": {"type": "int", "buckets": 97},
    "department": {"type": "string", "buckets": 20},
}
REQUEST = [
    {"kind": "id", "name": "user", "table": "user"},
    {"kind": "id", "name": "surface", "table": "surface"},
    {"kind": "number", "name": "hour", "rule": {"shift": 12.0, "scale": 6.0}},
]
CANDIDATE = [
    {"kind": "id", "name": "item", "table": "item"},
    {"kind": "number", "name": "price", "rule": {"transform": "log1p"}},
    {"kind": "id", "name": "department", "table": "department"},
]
HISTORY = [
    {"kind": "id", "name": "item", "table": "item"},
    {"kind": "number", "name": "amount", "rule": {"transform": "log1p"}},
]
OBJECTIVES = ["click", "purchase"]
WEIGHT_SHAPES = {"user": 52, "surface": 4, "item": 99, "department": 22, "hour": 1, "price": 1, "amount": 1, "age": 1}
DIGEST = "0" * 64
DAY = 86_400_000_000  # microseconds
NOW = 1_508_004_000_000_000


def make_weights(seed=3):
    """Each table [rows, 2 objectives], each number a [1, 2] weight."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(rows, 2)).astype(np.float32) for name, rows in WEIGHT_SHAPES.items()}


def make_graph(weights, last="Sigmoid"):
    """probabilities = sigmoid(candidate + request + mean of history), every term a row of a table."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, terms = [], {}

    def term(name, group, kind, *, column, source=None):
        if kind == "ids":
            nodes.append(helper.make_node("Gather", [f"{group}_ids", f"at{column}"], [f"{name}.row"], axis=1))
            nodes.append(helper.make_node("Gather", [source or name, f"{name}.row"], [name + ".out"]))
        else:
            nodes.append(helper.make_node("MatMul", [f"{group}_numbers", source or name], [name + ".out"]))
        terms.setdefault(group, []).append(name + ".out")

    term("user", "request", "ids", column=0)
    term("surface", "request", "ids", column=1)
    term("hour", "request", "numbers", column=0)
    term("item", "candidate", "ids", column=0)
    term("department", "candidate", "ids", column=1)
    term("price", "candidate", "numbers", column=0)
    nodes.append(helper.make_node("Gather", ["history_ids.purchases", "at0"], ["seen.row"], axis=1))
    nodes.append(helper.make_node("Gather", ["item", "seen.row"], ["seen"]))
    nodes.append(helper.make_node("MatMul", ["history_numbers.purchases", "amount"], ["spent"]))
    nodes.append(helper.make_node("Unsqueeze", ["history_ages.purchases", "axis1"], ["ages"]))
    nodes.append(helper.make_node("MatMul", ["ages", "age"], ["aged"]))
    nodes.append(helper.make_node("Sum", ["seen", "spent", "aged"], ["events"]))
    nodes.append(helper.make_node("ReduceSum", ["events", "axis0"], ["history.sum"], keepdims=1))
    nodes.append(helper.make_node("Shape", ["seen"], ["history.count"], start=0, end=1))
    nodes.append(helper.make_node("Cast", ["history.count"], ["history.length"], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Max", ["history.length", "one"], ["history.divisor"]))
    nodes.append(helper.make_node("Div", ["history.sum", "history.divisor"], ["history"]))
    nodes.append(helper.make_node("Sum", terms["request"], ["request"]))
    nodes.append(helper.make_node("Sum", terms["candidate"], ["candidate"]))
    nodes.append(helper.make_node("Add", ["request", "history"], ["shared"]))
    nodes.append(helper.make_node("Add", ["candidate", "shared"], ["logits"]))
    nodes.append(helper.make_node(last, ["logits"], ["probabilities"]))
    constants = {
        "at0": np.int64(0),
        "at1": np.int64(1),
        "axis0": np.array([0]),
        "axis1": np.array([1]),
        "one": np.array([1.0], np.float32),
    }
    inputs = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in [
            ("request_ids", TensorProto.INT64, [1, 2]),
            ("request_numbers", TensorProto.FLOAT, [1, 1]),
            ("candidate_ids", TensorProto.INT64, ["N", 2]),
            ("candidate_numbers", TensorProto.FLOAT, ["N", 1]),
            ("history_ids.purchases", TensorProto.INT64, ["T", 1]),
            ("history_numbers.purchases", TensorProto.FLOAT, ["T", 1]),
            ("history_ages.purchases", TensorProto.FLOAT, ["T"]),
        ]
    ]
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 2])
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in {**constants, **weights}.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def make_manifest(folder):
    files = [path for path in sorted(folder.iterdir()) if path.name != "manifest.json"]
    return {
        "format": 2,
        "placement": "home_clicks",
        "surface": "home",
        "objectives": OBJECTIVES,
        "tables": TABLES,
        "request": REQUEST,
        "candidate": CANDIDATE,
        "histories": [{"log": "purchases", "limit": 4, "features": HISTORY}],
        "max_candidates": 1000,
        "opset": 20,
        "budget": {"limit_ms": 50.0, "rate_per_s": 100.0},
        "provenance": {
            "project": "tests",
            "project_digest": DIGEST,
            "schema_digest": DIGEST,
            "data_fingerprint": DIGEST,
            "teacher_digest": None,
            "student_digest": DIGEST,
            "seed": 0,
            "versions": {},
        },
        "parity": {"num_requests": 0, "num_rows": 0, "largest_error": {}, "tolerance": 1e-5, "order_flips": {}},
        "files": {
            path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
            for path in files
        },
    }


def write_bundle(folder, *, weights=None, last="Sigmoid", change_manifest=None):
    """A whole bundle in a new folder; `change_manifest` edits the manifest's dict before it is written."""
    import onnx

    folder.mkdir(parents=True)
    onnx.save(
        make_graph(weights or make_weights(), last),
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=100,  # constants that shape inference reads must be inline
    )
    manifest = copy.deepcopy(make_manifest(folder))
    if change_manifest is not None:
        change_manifest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def tiny():
    """What tests need to know of the tiny bundle: how to write one, and its parts."""
    return SimpleNamespace(
        write=write_bundle, graph=make_graph, manifest=make_manifest, weights=make_weights(), tables=TABLES
    )


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory):
    """A bundle that no test writes to."""
    return write_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def ranker(bundle_folder):
    from serving.ranker import Ranker

    return Ranker.load(bundle_folder)


@pytest.fixture
def raw():
    """One well-formed request as raw features: request, histories, candidates."""
    return SimpleNamespace(
        request={"time": NOW, "user": 17, "surface": "home", "hour": 13.0},
        histories={"purchases": {"time": [NOW - 3 * DAY, NOW - DAY // 2], "item": [3, 9], "amount": [1.0, 2.5]}},
        candidates={"item": [4, 5, 2**64 - 1], "price": [0.5, None, 3], "department": ["DELI", None, "肉"]},
    )
