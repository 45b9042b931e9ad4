"""The bundle: what is in it, that it says what the student said, and that nothing is published otherwise."""

import dataclasses
import getpass
import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from eval.predictions import load_predictions
from foundation.data.store import Store
from serving.errors import BundleError, MismatchError
from serving.ids import OUT_OF_VOCABULARY
from serving.manifest import MODEL_FILE, Parity
from serving.ranker import Ranker
from transfer import export as exporting
from transfer.config import StudentConfig
from transfer.distill import PREDICTIONS_FILE, train_student
from transfer.export import FORBIDDEN_OPERATORS, REQUESTS_FILE, ExportJob, current_bundle, export, served_student
from transfer.parity import TOLERANCE, _hostile_feeds
from transfer.student import StudentNetwork

PLACEMENTS = ("related_click", "search_conversion")


def job_of(tiny, target, placement="search_conversion"):
    space = tiny.space()
    return ExportJob(
        student=space.student_job(placement, 0, "student"),
        project="tiny",
        project_digest=space.loaded.digest,
        target=target,
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=PLACEMENTS)
def placement(request):
    return request.param


@pytest.fixture
def bundle(tiny, placement):
    return current_bundle(tiny.space().bundles(placement))


@pytest.fixture(scope="module")
def graph(tiny):
    return onnx.load(current_bundle(tiny.space().bundles("search_conversion")) / MODEL_FILE)


SCORE = """
import json, sys
sys.modules.update(dict.fromkeys(["torch", "torchrec", "fbgemm_gpu", "onnx", "onnxscript"]))
from serving.ranker import Ranker
ranker = Ranker.load(sys.argv[1])
for line in open(sys.argv[2]):
    scores = ranker.score(**json.loads(line))
    print(json.dumps({name: values.tolist() for name, values in scores.items()}))
"""


def test_a_process_without_torch_scores_raw_requests_as_the_trained_student_did(tiny, placement, bundle):
    requests = bundle.parent / REQUESTS_FILE
    told = subprocess.run([sys.executable, "-c", SCORE, bundle, requests], capture_output=True, text=True, check=True)
    served = [json.loads(line) for line in told.stdout.splitlines()]
    predictions = load_predictions(tiny.space().student(placement, 0, "student") / PREDICTIONS_FILE)
    positions = np.unique(predictions.request)
    assert len(served) == len(positions)
    for scores, position in zip(served, positions, strict=True):
        rows = predictions.request == position
        assert scores.keys() == predictions.probabilities.keys()
        for objective, said in scores.items():
            assert np.abs(said - predictions.probabilities[objective][rows]).max() < TOLERANCE


def test_the_logged_requests_are_plain_json_with_real_histories(bundle):
    lines = [json.loads(line) for line in (bundle.parent / REQUESTS_FILE).read_text().splitlines()]
    assert all(line.keys() == {"request", "histories", "candidates"} for line in lines)
    assert any(line["histories"]["actions"]["time"] for line in lines)
    for line in lines:
        times = line["histories"]["actions"]["time"]
        assert times == sorted(times)
        assert all(time < line["request"]["time"] for time in times)


def test_the_graph_has_no_loop_no_branch_and_nothing_of_training(graph):
    operators = {node.op_type for node in graph.graph.node}
    assert not operators & FORBIDDEN_OPERATORS
    assert not any(name.startswith("Sequence") for name in operators)
    assert not graph.functions
    names = [name for node in graph.graph.node for name in (node.name, *node.input, *node.output)]
    names += [tensor.name for tensor in graph.graph.initializer]
    assert not [name for name in names if "auxiliary" in name or "kd" in name]
    assert operators.isdisjoint({"RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"})


def test_the_weights_are_the_tables_and_the_network_and_no_more(tiny, graph):
    job = job_of(tiny, None).student
    served = served_student(job, Store.open(job.store, job.schema))
    parameters = served.table.numel() + sum(parameter.numel() for parameter in served.network.parameters())
    floats = [
        tensor for tensor in graph.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims)
    ]
    assert sum(int(np.prod(tensor.dims)) for tensor in floats) - parameters in range(8), "and the decays"
    with_auxiliary = parameters + sum(p.numel() for p in torch.nn.Linear(8, 8).parameters())
    assert with_auxiliary - parameters > 8, "the auxiliary head would not go unseen"


def test_every_size_that_varies_is_free_in_the_graph(graph):
    for value in graph.graph.input:
        rows = value.type.tensor_type.shape.dim[0]
        assert (rows.dim_value, rows.dim_param) == (1, "") if value.name.startswith("request_") else rows.dim_param


def test_nothing_of_this_machine_is_in_a_bundle(bundle, tiny):
    hints = [".py", "site-packages", "Traceback", "stack_trace", str(Path.cwd()), str(Path.home()), str(tiny.root)]
    hints += [socket.gethostname(), sys.prefix, f"/{getpass.getuser()}/"]
    for name, content in contents(bundle).items():
        if name != f"{MODEL_FILE}.data":
            assert not [hint for hint in hints if hint.encode() in content], name


def test_exporting_again_in_another_process_gives_the_same_bytes(tiny, tmp_path, bundle, placement):
    project = tiny.copy(tmp_path / "tiny", without=["bundles"])
    command = [sys.executable, "-m", "gemcut", "export", "-p", project.path, "--placement", placement]
    subprocess.run(command, capture_output=True, check=True)
    again = current_bundle(project.space().bundles(placement))
    assert again.name == bundle.name
    assert contents(again) == contents(bundle)
    assert [path.name for path in again.parent.iterdir() if path.is_dir()] == [bundle.name]


def test_exporting_again_over_it_leaves_one_bundle(tiny, tmp_path):
    job = job_of(tiny, tmp_path)
    first = export(job)
    kept = first.stat().st_ino
    assert export(job) == first
    assert first.stat().st_ino == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([first.name, "current", REQUESTS_FILE])


@pytest.fixture
def perturbed(monkeypatch):
    """The student that is exported has one weight that was not trained."""

    def perturb(change):
        def other(job, store):
            model = served_student(job, store)
            with torch.no_grad():
                change(model)
            return model

        monkeypatch.setattr(exporting, "served_student", other)

    return perturb


@pytest.mark.parametrize("before", [False, True], ids=["no bundle before", "a bundle before"])
def test_a_graph_that_says_something_else_is_not_published(tiny, tmp_path, perturbed, before):
    job = job_of(tiny, tmp_path / "bundles")
    if before:
        export(job)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    perturbed(lambda model: model.network.head.bias[1].add_(1e-3))
    with pytest.raises(BundleError) as caught:
        export(job)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "bundles"} == {
        path: time for path, time in kept.items() if path.name != "bundles"
    }
    assert all("parity on logged requests: objective conversion" in problem.where for problem in caught.value.problems)
    assert caught.value.problems[0].expected == "probabilities within 1e-05"


def test_a_graph_that_differs_from_the_model_on_a_hostile_request_is_not_published(tiny, tmp_path, monkeypatch):
    """The graph reads row 2 for every bad id; the logs have none, so that only hostile requests tell."""
    write = exporting.write_graph

    def write_another(model, feeds, folder):
        known = type(model.request_rows).known
        with monkeypatch.context() as patch:
            patch.setattr(
                type(model.request_rows),
                "known",
                lambda self, ids: torch.where(known(self, ids) != ids, OUT_OF_VOCABULARY + 1, ids),
            )
            write(model, feeds, folder)

    monkeypatch.setattr(exporting, "write_graph", write_another)
    with pytest.raises(BundleError) as caught:
        export(job_of(tiny, tmp_path))
    places = [problem.where for problem in caught.value.problems]
    assert places
    assert all("parity on id " in place for place in places)
    assert not list(tmp_path.iterdir())


def test_the_hostile_requests_damage_every_id_of_every_group(tiny, placement, bundle):
    ranker = Ranker.load(bundle)
    requests = [json.loads(line) for line in (bundle.parent / REQUESTS_FILE).read_text().splitlines()]
    emptied = requests[0] | {"histories": {log: {"time": []} for log in requests[0]["histories"]}}
    found = dict(_hostile_feeds(ranker, [emptied, *requests[1:]]))
    groups = ("request_ids", "candidate_ids", "history_ids.actions", "history_ids.visits")
    assert found.keys() >= {f"id {bad} in {group}" for bad in (-1, 0, 2**31, 2**63 - 1) for group in groups}
    lengths = {kind: (len(feeds["candidate_ids"]), len(feeds["history_ages.visits"])) for kind, feeds in found.items()}
    assert {count for count, _ in lengths.values()} >= {1, 2, 513}
    assert lengths["an empty history"][1] == 0
    assert lengths["the longest history"][1] == 8


def test_a_graph_with_an_operator_that_must_not_serve_is_refused(tiny, tmp_path, perturbed):
    def add_dropout(model):
        model.network.hidden.append(torch.nn.Dropout(0.5).train())

    perturbed(add_dropout)
    with pytest.raises(MismatchError, match=r"operator Dropout"):
        export(job_of(tiny, tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_candidates", [1, 2, 33, 513])
@pytest.mark.parametrize("num_events", [0, 1, 8])
def test_any_number_of_candidates_and_events(tiny, num_candidates, num_events):
    job = job_of(tiny, None).student
    served = served_student(job, Store.open(job.store, job.schema))
    ranker = Ranker.load(current_bundle(tiny.space().bundles(job.name)))
    draw = np.random.default_rng(num_events)
    shapes = {node.name: node.shape for node in ranker._session.get_inputs()}
    rows = {"request": 1, "candidate": num_candidates, "history": num_events}
    feeds = {}
    for name, shape in shapes.items():
        size = (rows[name.partition("_")[0]], *shape[1:])
        ids = "_ids" in name
        feeds[name] = draw.integers(0, 5, size) if ids else draw.uniform(0, 9, size).astype(np.float32)
    with torch.no_grad():
        expected = served({name: torch.as_tensor(array) for name, array in feeds.items()}).numpy()
    said = ranker.score_arrays(feeds)
    assert expected.shape == (num_candidates, 2)
    for place, objective in enumerate(job.placement.objectives):
        assert np.abs(said[objective] - expected[:, place]).max() < TOLERANCE


@pytest.mark.parametrize("bad", [-1, 202, 2**31, 2**62, 2**63 - 1])
def test_an_id_outside_its_table_is_out_of_vocabulary_in_the_graph(tiny, bad):
    ranker = Ranker.load(current_bundle(tiny.space().bundles("search_conversion")))
    line = (tiny.space().bundles("search_conversion") / REQUESTS_FILE).read_text().splitlines()[-1]
    feeds = ranker.encode(**json.loads(line))
    ids = [name for name in feeds if "_ids" in name and feeds[name].size]
    assert "candidate_ids" in ids
    for name in ids:
        for column in range(feeds[name].shape[1]):

            def said(value, name=name, column=column):
                damaged = feeds[name].copy()
                damaged[0, column] = value
                return ranker.score_arrays(feeds | {name: damaged})["click"]

            assert np.array_equal(said(bad), said(OUT_OF_VOCABULARY)), (name, column)


def test_the_manifest_is_the_contract(tiny, placement, bundle):
    space = tiny.space()
    manifest = Ranker.load(bundle).manifest
    wanted = space.loaded.project.placements[placement]
    assert (manifest.placement, manifest.surface, manifest.objectives, manifest.budget) == (
        placement, wanted.surface, wanted.objectives, wanted.budget,
    )  # fmt: skip
    assert [history.limit for history in manifest.histories] == [wanted.student.history] * 2
    assert manifest.provenance.project_digest == space.loaded.digest
    assert manifest.provenance.teacher_digest is not None
    assert set(manifest.tables) == {"user", "item", "category", "segment", "device", "surface", "action"}
    assert manifest.parity.num_requests > 30
    assert 0 <= max(manifest.parity.largest_error.values()) <= manifest.parity.tolerance == TOLERANCE
    assert isinstance(manifest.parity, Parity)


def test_a_student_that_was_never_trained_is_asked_for(tiny, tmp_path):
    job = job_of(tiny, tmp_path / "bundles")
    job = dataclasses.replace(job, student=dataclasses.replace(job.student, folder=tmp_path / "none"))
    with pytest.raises(MismatchError, match="gemcut distill --placement search_conversion"):
        export(job)
    assert not (tmp_path / "bundles").exists()


def test_no_bundle_is_said_to_be_none(tmp_path):
    with pytest.raises(MismatchError, match="gemcut export"):
        current_bundle(tmp_path)


@pytest.mark.parametrize("hidden", [(4,), (8, 8, 4)])
def test_networks_of_any_depth_are_exported(tiny, tmp_path, hidden):
    job = job_of(tiny, tmp_path / "bundles")
    student = job.student.placement.student.model_copy(update={"hidden": hidden, "history": 1, "width": 8})
    trained = dataclasses.replace(
        job.student,
        placement=job.student.placement.model_copy(update={"student": student}),
        folder=tmp_path / "student",
        arm="student",
    )
    train_student(trained)
    bundle = export(dataclasses.replace(job, student=trained))
    assert Ranker.load(bundle).manifest.histories[0].limit == 1


def test_a_network_has_the_layers_it_is_asked_for(tiny):
    shape = exporting.StudentShape.of(tiny.load().project)
    network = StudentNetwork(shape, StudentConfig(hidden=(5,)), 3)
    assert [type(layer).__name__ for layer in network.hidden] == ["ReLU"]
    assert network.head.in_features == 5
