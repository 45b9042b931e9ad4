"""What the cost model says of a store is what gloo ranks really send, hold and answer."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import yaml

from foundation.config import FoundationConfig
from foundation.data.prepare import prepare
from foundation.data.schema import Schema
from foundation.data.store import Store, microseconds
from foundation.efficiency.workload import workload_of
from foundation.parallel.traffic import dense_traffic, sparse_traffic
from gemcut.demo_data.synthetic import make_data

PROJECT = Path(__file__).parents[3] / "examples" / "synthetic" / "project.yaml"
COUNT_JOB = Path(__file__).with_name("count_job.py")
NUM_REQUESTS = 600
CONFIG = {
    "model": {"width": 8, "encoder_events": 8, "interaction_tokens": 2, "hidden": 32},
    "training": {"batch_requests": 64},
}
DEADLINE_S = 120
RANKS = (1, 2, 4)

# Who asks and where the row lies are independent, so that (N - 1) / N of the lookups leave their rank, but not exactly:
# a request's ids go together, and 484 of them leave half a per cent.
SAMPLING = 0.02
# Every request of the period is in the sample, and rows beyond the hottest 1,024 of a table have few lookups each.
ANSWERED = 0.02
# gloo puts 144 bytes before what goes to a peer in each of 5 all-to-alls, and 576 in an all-reduce; the rest is for the
# one time that gradient buckets are laid out anew.
HEADERS_A_PEER = 144 * 5 + 576 + 300

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Number of ranks → what each of them counted; and the workload that is counted on the store."""
    root = tmp_path_factory.mktemp("counted")
    document = yaml.safe_load(PROJECT.read_text())
    for table in ("user", "item"):
        document["tables"][table]["buckets"] = 2000
    schema = Schema.model_validate({name: document[name] for name in Schema.model_fields if name in document})
    make_data(root / "data", num_requests=NUM_REQUESTS, seed=0)
    prepare(schema, root, root / "store", threads=1)
    store, config = Store.open(root / "store", schema), FoundationConfig.model_validate(CONFIG)
    until_us = microseconds(document["split"]["test_from"])
    workload, sample = workload_of(schema, config, store, until_us=until_us)
    assert sample.requests == len(store.select(end=until_us))
    task = {
        "schema": schema.model_dump(mode="json"),
        "config": config.model_dump(mode="json"),
        "store": str(store.folder),
        "until_us": until_us,
    }
    runs = {num_ranks: count(root / f"task-{num_ranks}.json", task, num_ranks) for num_ranks in RANKS}
    return SimpleNamespace(runs=runs, workload=replace(workload, requests=sample.requests))


def count(path, task, num_ranks):
    path.write_bytes(orjson.dumps(task))
    meeting = {"WORLD_SIZE": str(num_ranks), "GEMCUT_MEETING_FILE": f"{path}.meeting"}
    ranks = []
    for rank in range(num_ranks):
        environment = os.environ | meeting | {"RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, COUNT_JOB, path], env=environment, stderr=subprocess.PIPE))
    try:
        errors = [process.communicate(timeout=DEADLINE_S)[1].decode() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * num_ranks, "\n".join(errors)
    return [orjson.loads(Path(f"{path}.{rank}").read_bytes()) for rank in range(num_ranks)]


def mean(values):
    return sum(values) / len(values)


def predicted(counted, num_ranks):
    """(steps, requests of a rank and step, the all-to-alls of a step)."""
    steps = counted.runs[num_ranks][0]["steps"]
    requests = counted.workload.requests / steps / num_ranks
    return steps, requests, sparse_traffic(counted.workload, requests, num_ranks)


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("kind", ["splits", "lengths", "ids", "embeddings", "gradients"])
def test_all_to_alls_send_the_bytes_that_are_predicted(counted, num_ranks, kind):
    steps, _, traffic = predicted(counted, num_ranks)
    sent = mean([rank["sent"].get(kind, 0) for rank in counted.runs[num_ranks]]) / steps
    exact = kind in {"splits", "lengths"}
    assert sent == pytest.approx(getattr(traffic, kind), rel=1e-9 if exact else SAMPLING)


@pytest.mark.parametrize("num_ranks", RANKS[1:])
def test_the_kernel_was_handed_the_bytes_of_both_parts(counted, num_ranks):
    steps, _, traffic = predicted(counted, num_ranks)
    expected = traffic.total + dense_traffic(counted.workload, 1, num_ranks).total
    handed = mean([rank["written"] for rank in counted.runs[num_ranks]]) / steps
    assert handed == pytest.approx(expected, rel=SAMPLING, abs=HEADERS_A_PEER * (num_ranks - 1))


@pytest.mark.parametrize("num_ranks", RANKS[1:])
def test_gradients_of_the_dense_part_take_a_ring(counted, num_ranks):
    steps = counted.runs[num_ranks][0]["steps"]
    expected = dense_traffic(counted.workload, 1, num_ranks).all_reduce
    ranks = counted.runs[num_ranks]
    rest = mean([rank["written"] - sum(rank["sent"].values()) for rank in ranks]) / steps
    assert expected < rest < expected + HEADERS_A_PEER * (num_ranks - 1)


@pytest.mark.parametrize("num_ranks", RANKS)
def test_the_fullest_rank_holds_the_shard_that_is_predicted(counted, num_ranks):
    ranks = counted.runs[num_ranks]
    assert max(rank["table_bytes"] for rank in ranks) == counted.workload.shard_bytes(num_ranks)
    assert max(rank["state_bytes"] for rank in ranks) == counted.workload.state_bytes(num_ranks)
    assert ranks[0]["dense_parameters"] == counted.workload.dense_parameters


@pytest.mark.parametrize("num_ranks", RANKS[1:])
def test_the_busiest_rank_answers_as_much_as_is_predicted(counted, num_ranks):
    answered = [rank["answered"] for rank in counted.runs[num_ranks]]
    assert max(answered) / mean(answered) == pytest.approx(counted.workload.imbalance(num_ranks), rel=ANSWERED)


def test_one_rank_sends_nothing(counted):
    assert sum(counted.runs[1][0]["sent"].values()) == 0
