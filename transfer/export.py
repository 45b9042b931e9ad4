"""Exports a student to a bundle: ONNX with its weights beside it, a manifest, a parity record; or nothing at all."""

from __future__ import annotations

import hashlib
import logging
import shutil
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from safetensors.torch import load as from_safetensors

from eval.artifacts import digests_of, staged_folder, write_file
from eval.predictions import Predictions, load_predictions
from foundation.data.raw import raw_requests
from foundation.data.schema import Feature, IdFeature, NumberFeature, Schema
from foundation.data.store import Store
from foundation.model.conditional import products_of
from foundation.model.embedding import module_name
from serving.errors import MismatchError, Problem
from serving.features import groups_of
from serving.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    FileEntry,
    HistoryInput,
    IdInput,
    Input,
    Manifest,
    NumberInput,
    Parity,
    Provenance,
)
from serving.ranker import Ranker
from serving.session import open_session
from transfer.distill import PREDICTIONS_FILE, RESULT_FILE, WEIGHTS_FILE, StudentJob, StudentResult, finished_student
from transfer.parity import check_parity
from transfer.sampling import corrections, with_odds
from transfer.served import ServedStudent
from transfer.student import StudentNetwork, StudentShape

if TYPE_CHECKING:
    import onnx

OPSET = 20
REQUESTS_FILE = "requests.jsonl"
CURRENT_FILE = "current"
NUM_REQUESTS = 256
NO_PARITY = Parity(num_requests=0, num_rows=0, largest_error={}, tolerance=0.0, order_flips={})
FORBIDDEN_OPERATORS = frozenset(
    {"Loop", "If", "Scan", "Dropout", "BatchNormalization", "RandomNormal", "RandomUniform"}
)


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Which student becomes a bundle.

    Attributes:
        student: a finished job of the arm "student".
        project, project_digest: of the project file.
        target: folder that gets `<digest>/` and `requests.jsonl`.
    """

    student: StudentJob
    project: str
    project_digest: str
    target: Path


def export(job: ExportJob) -> Path:
    """Export, check parity, publish; the bundle's folder is named by its manifest's digest.

    Returns:
        The bundle's folder. `requests.jsonl` beside it holds logged requests for the gate.

    Raises:
        MismatchError: the student was not trained, or its graph can not be served.
        BundleError: parity was breached.
    """
    student = job.student
    store = Store.open(student.store, student.schema, verify=True)
    result = trained_student(student, store)
    model = served_student(student, store)
    predictions = _of_all_rows(
        load_predictions(student.folder / PREDICTIONS_FILE, data_fingerprint=store.fingerprint), student.schema
    )
    positions = _sample(predictions.request)
    requests = raw_requests(store, positions, history_limits=student.placement.student.history_limits(student.schema))
    with staged_folder(job.target / "candidate") as stage:
        draft = manifest_of(job, store, result=result, parity=NO_PARITY, folder=stage)
        example = example_feeds(draft)
        write_graph(model, example, stage)
        ranker = Ranker(draft, open_session(stage / MODEL_FILE))
        parity = check_parity(ranker, model, requests, positions=positions, predictions=predictions)
        manifest = manifest_of(job, store, result=result, parity=parity, folder=stage)
        content = orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
        write_file(stage / MANIFEST_FILE, content)
    bundle = job.target / hashlib.sha256(content).hexdigest()[:12]
    if bundle.exists():
        shutil.rmtree(job.target / "candidate")
    else:
        (job.target / "candidate").rename(bundle)
    lines = b"".join(orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE) for request in requests)
    write_file(job.target / REQUESTS_FILE, lines)
    write_file(job.target / CURRENT_FILE, bundle.name.encode())
    return bundle


def current_bundle(target: Path) -> Path:
    """The newest bundle of a placement.

    Raises:
        MismatchError: none was exported.
    """
    pointer = target / CURRENT_FILE
    bundle = target / pointer.read_text() if pointer.is_file() else target / CURRENT_FILE
    if not bundle.is_dir():
        raise MismatchError(Problem(str(target), "an exported bundle", "none", "Run `gemcut export` first."))
    return bundle


def _of_all_rows(predictions: Predictions, schema: Schema) -> Predictions:
    """What the trained model would say if the log had kept every row, as a bundle does."""
    corrected = {
        name: with_odds(probabilities, schema.objectives[name].negatives_kept)
        for name, probabilities in predictions.probabilities.items()
    }
    return replace(predictions, probabilities=corrected)


def _sample(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Requests spread evenly over the test period."""
    unique = np.unique(positions)
    return unique[np.linspace(0, len(unique) - 1, min(NUM_REQUESTS, len(unique))).astype(np.int64)]


def example_feeds(manifest: Manifest) -> dict[str, Any]:
    """Inputs to trace the graph with: every dynamic axis of its own size, none of them 1."""
    request, candidates, histories = groups_of(manifest)
    sizes = [(request, 1), (candidates, 3), *((group, 5 + 2 * place) for place, group in enumerate(histories.values()))]
    feeds: dict[str, Any] = {}
    for group, size in sizes:
        if group.num_ids:
            feeds[group.ids] = np.full((size, group.num_ids), 2, dtype=np.int64)
        if group.num_numbers:
            feeds[group.numbers] = np.ones((size, group.num_numbers), dtype=np.float32)
        if group.ages is not None:
            feeds[group.ages] = np.arange(1, size + 1, dtype=np.float32)
    return feeds


def trained_student(job: StudentJob, store: Store) -> StudentResult:
    """The record of a trained student.

    Raises:
        MismatchError: it was not trained yet, or with other settings, soft labels or rows.
    """
    result = finished_student(job, store)
    if result is None:
        got = "one of other settings, soft labels or rows" if (job.folder / RESULT_FILE).is_file() else "none"
        seeds = f" --seeds {job.seed + 1}" if job.seed else ""
        remedy = f"Run `gemcut distill --placement {job.name}{seeds}` first."
        raise MismatchError(Problem(str(job.folder), "a student of this project, trained", got, remedy))
    return result


def served_student(job: StudentJob, store: Store) -> ServedStudent:
    """The trained student in the form that is served, in eval mode.

    Raises:
        MismatchError: as for `trained_student`.
    """
    trained_student(job, store)
    weights = from_safetensors((job.folder / WEIGHTS_FILE).read_bytes())
    shape = StudentShape.of(job.schema)
    objectives = job.placement.objectives
    products = products_of(job.schema, objectives)
    network = StudentNetwork(shape, job.placement.student, len(objectives), products=products)
    prefix = "network."
    network.load_state_dict({n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)})
    tables = {
        table: weights[f"embedding.collection.embeddings.{module_name(table)}.weight"]
        for table in sorted(used_tables(job.schema))
    }
    added = corrections(job.schema, objectives)
    return ServedStudent(job.schema, shape, network, tables, corrections=added).eval()


def used_tables(schema: Schema) -> set[str]:
    """Tables that some feature of the schema names."""
    features = [*schema.request_features(), *schema.candidate_features()]
    features += [feature for log in schema.data.events for feature in schema.event_features(log)]
    return {feature.table_name for feature in features if isinstance(feature, IdFeature)}


def write_graph(model: ServedStudent, feeds: dict[str, Any], folder: Path) -> None:
    """Write `model.onnx` and `model.onnx.data`; `feeds` is an example with several candidates and events.

    Raises:
        MismatchError: the graph has an operator that must not be served, or an axis froze.
    """
    example = {name: torch.as_tensor(array) for name, array in feeds.items()}
    candidates, dynamic = torch.export.Dim("candidates", min=1, max=2**20), torch.export.Dim
    axes = {name: {} if name.startswith("request_") else {0: _axis(name, candidates, dynamic)} for name in example}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            kwargs={"inputs": example},
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(example),
            output_names=["probabilities"],
            dynamic_shapes={"inputs": axes},
            optimize=True,
        )
    assert program is not None, "the dynamo exporter returns its program"
    graph = program.model_proto
    _strip(graph)
    _check_graph(graph, set(example))
    _save(graph, folder)


def _axis(name: str, candidates: Any, dynamic: Any) -> Any:
    return (
        candidates if name.startswith("candidate_") else dynamic(f"events_{name.partition('.')[2]}", min=0, max=2**20)
    )


def _strip(graph: onnx.ModelProto) -> None:
    """Source paths and traces of this machine have no place in a bundle."""
    for node in graph.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in [*graph.graph.value_info, *graph.graph.input, *graph.graph.output, *graph.graph.initializer]:
        del value.metadata_props[:]
    del graph.metadata_props[:]
    del graph.graph.metadata_props[:]


def _check_graph(graph: onnx.ModelProto, inputs: set[str]) -> None:
    operators = {node.op_type for node in graph.graph.node}
    bad = sorted(op for op in operators if op in FORBIDDEN_OPERATORS or op.startswith("Sequence"))
    problems = [
        Problem(f"{MODEL_FILE}: operator {op}", "operators that serve", op, "Change the layer that makes it.")
        for op in bad
    ]
    for value in graph.graph.input:
        first = value.type.tensor_type.shape.dim[0]
        if not value.name.startswith("request_") and not first.dim_param:
            got, remedy = f"a fixed {first.dim_value}", "Export with an example of another size."
            problems.append(Problem(f"{MODEL_FILE}: input {value.name}", "a dynamic first axis", got, remedy))
    missing = sorted(inputs - {value.name for value in graph.graph.input})
    problems += [
        Problem(
            f"{MODEL_FILE}: input {name}", "an input of the graph", "an input that nothing uses", "Drop the feature."
        )
        for name in missing
    ]
    if problems:
        raise MismatchError(problems)


def _save(graph: onnx.ModelProto, folder: Path) -> None:
    import onnx

    onnx.save_model(
        graph,
        str(folder / MODEL_FILE),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{MODEL_FILE}.data",
        size_threshold=1024,
    )


def manifest_of(job: ExportJob, store: Store, *, result: StudentResult, parity: Parity, folder: Path) -> Manifest:
    """The manifest of the files in `folder`."""
    student, schema = job.student, job.student.schema
    return Manifest(
        placement=student.name,
        surface=student.placement.surface,
        objectives=student.placement.objectives,
        tables={name: schema.id_space(name) for name in sorted(used_tables(schema))},
        request=_inputs(schema.request_features()),
        candidate=_inputs(schema.candidate_features()),
        histories=tuple(
            HistoryInput(log=log, limit=limit, features=_inputs(schema.event_features(log)))
            for log, limit in student.placement.student.history_limits(schema).items()
        ),
        opset=OPSET,
        budget=student.placement.budget,
        provenance=Provenance(
            project=job.project,
            project_digest=job.project_digest,
            schema_digest=schema.schema_digest(),
            data_fingerprint=store.fingerprint,
            teacher_digest=result.teacher,
            student_digest=result.weights_digest,
            seed=student.seed,
            versions={name: version(name) for name in ("gemcut", "torch", "onnx", "onnxruntime", "onnxscript")},
        ),
        parity=parity,
        files={
            name: FileEntry(sha256=digest.sha256, bytes=digest.bytes)
            for name, digest in digests_of(folder, exclude=(MANIFEST_FILE,)).items()
        },
    )


def _inputs(features: tuple[Feature, ...]) -> tuple[Input, ...]:
    return tuple(_input(feature) for feature in features)


def _input(feature: Feature) -> Input:
    match feature:
        case IdFeature():
            return IdInput(name=feature.name, table=feature.table_name)
        case NumberFeature():
            return NumberInput(name=feature.name, rule=feature.rule)
        case _:
            assert_never(feature)
