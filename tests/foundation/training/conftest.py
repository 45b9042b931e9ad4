"""A small synthetic log, its store, and jobs on it; and what a training run leaves behind, in a form to compare."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import yaml
from safetensors import safe_open

from foundation.config import FoundationConfig
from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from foundation.data.store import Store, microseconds
from foundation.training.job import FoundationJob
from foundation.training.preemption import PREEMPTED
from gemcut.demo_data.synthetic import make_data

PROJECT = Path(__file__).parents[3] / "examples" / "synthetic" / "project.yaml"
MODEL = {
    "width": 8,
    "encoder_events": 8,
    "interleaved_layers": 1,
    "interaction_layers": 1,
    "interaction_tokens": 2,
    "hidden": 16,
}
TRAINING = {"batch_requests": 16, "checkpoint_every": 4, "checkpoint_async": False, "seed": 3}
NUM_REQUESTS = 250
TRAIN_JOB = Path(__file__).with_name("train_job.py")
DEADLINE_S = 200


def read_schema():
    """The example's, with small tables, and the time of its cut."""
    document = yaml.safe_load(PROJECT.read_text())
    for table in ("user", "item"):
        document["tables"][table]["buckets"] = 500
    schema = Schema.model_validate({name: document[name] for name in Schema.model_fields if name in document})
    return schema, microseconds(document["split"]["test_from"])


def made_store(root, *, seed):
    schema, until_us = read_schema()
    make_data(root / "data", num_requests=NUM_REQUESTS, seed=seed)
    prepare(schema, root, root / "store", threads=1)
    return SimpleNamespace(
        schema=schema, until_us=until_us, folder=root / "store", store=Store.open(root / "store", schema)
    )


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """A log of 250 requests, 200 of them before the cut."""
    return made_store(tmp_path_factory.mktemp("log"), seed=0)


@pytest.fixture(scope="session")
def other_log(tmp_path_factory):
    """Another log of the same schema."""
    return made_store(tmp_path_factory.mktemp("other_log"), seed=1)


@pytest.fixture(scope="session")
def job_of(log):
    """(folder, settings of the training or fields of the job) → a job on the log."""

    def make(folder, **changed):
        fields = {
            name: changed.pop(name)
            for name in ("schema", "store", "until_us", "cut_us", "model", "parallel")
            if name in changed
        }
        sections = {"model": MODEL | fields.pop("model", {}), "parallel": fields.pop("parallel", {})}
        config = FoundationConfig.model_validate(sections | {"training": TRAINING | changed})
        job = FoundationJob(log.schema, config, log.folder, folder, log.until_us)
        return replace(job, **fields)

    return make


def tensors_of(checkpoint):
    """Every tensor of a checkpoint as (dtype, shape, bytes)."""
    found = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                tensor = file.get_tensor(name)
                found[name] = (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes())
    return found


@pytest.fixture(scope="session")
def run_job(tmp_path_factory):
    """(job, number of ranks, when to die) → each rank's exit code and errors; the ranks meet in a file.

    Several jobs in a list are run one after the other, which saves starts.
    """

    def described(job, moment):
        return {
            "schema": job.schema.model_dump(mode="json"),
            "config": job.config.model_dump(mode="json"),
            "store": str(job.store),
            "folder": str(job.folder),
            "until_us": job.until_us,
            "cut_us": job.cut_us,
            "moment": moment,
        }

    def run(job, num_ranks=1, *, moment="never"):
        description_file = tmp_path_factory.mktemp("job") / "job.json"
        jobs = job if isinstance(job, list) else [job]
        description_file.write_bytes(orjson.dumps([described(each, moment) for each in jobs]))
        peers = {"WORLD_SIZE": str(num_ranks), "GEMCUT_MEETING_FILE": str(description_file.with_name("meeting"))}
        ranks = []
        for rank in range(num_ranks):
            environment = os.environ | (peers | {"RANK": str(rank)} if num_ranks > 1 else {})
            command = [sys.executable, TRAIN_JOB, description_file]
            ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
        return finished(ranks, deadline_s=DEADLINE_S * (1 + len(jobs) // 4))

    return run


def finished(processes, *, deadline_s=DEADLINE_S):
    """Wait for all; once one has failed, the others only wait for it, and are ended."""
    results = {}
    with ThreadPoolExecutor(len(processes)) as pool:
        waits = {pool.submit(process.communicate): process for process in processes}
        for wait in as_completed(waits, timeout=deadline_s):
            process = waits[wait]
            results[process.pid] = SimpleNamespace(returncode=process.returncode, errors=wait.result()[1].decode())
            if process.returncode not in (0, PREEMPTED):
                for other in processes:
                    other.kill()
    return [results[process.pid] for process in processes]


@pytest.fixture(scope="session")
def snapshot():
    """Folder of a run → all it made, bit by bit, except how long it took."""

    def take(folder):
        checkpoints = sorted(path for path in (folder / "checkpoints").iterdir())
        report = orjson.loads((folder / "report.json").read_bytes())
        return SimpleNamespace(
            checkpoints=[path.name for path in checkpoints],
            tensors=tensors_of(checkpoints[-1]),
            state=(checkpoints[-1] / "state.json").read_bytes(),
            soft_labels={path.name: path.read_bytes() for path in sorted((folder / "soft_labels").iterdir())},
            from_cut={path.name: path.read_bytes() for path in sorted(folder.glob("soft_labels_from_cut/*"))},
            progressive={name: told for name, told in report.items() if name not in ("stream", "ranks")},
        )

    return take
