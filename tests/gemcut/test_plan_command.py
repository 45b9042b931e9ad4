"""`gemcut plan`: what it says and refuses; the figures themselves are tested with the cost model."""

import subprocess
import sys
from dataclasses import replace

import orjson
import pytest

from foundation.data.store import Store
from foundation.efficiency.workload import workload_of
from foundation.parallel.cluster import HARDWARE, Cluster
from foundation.parallel.cost import best_group, group_costs
from gemcut.cli import Gpu
from gemcut.commands.plan import _gpus_that_fit
from gemcut.commands.prepare import prepare
from gemcut.console import Screen


@pytest.fixture(scope="module")
def prepared(tiny_logs, tmp_path_factory):
    project = tiny_logs.copy(tmp_path_factory.mktemp("plan") / "tiny")
    prepare(project.load(), Screen())
    return project


@pytest.fixture(scope="module")
def found(prepared):
    """The plan of 32 GPUs: its JSON document and its text."""
    command = [sys.executable, "-m", "gemcut", "plan", "--gpus", "32", "--json", "-p", str(prepared.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return orjson.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def workload(prepared):
    space, project = prepared.space(), prepared.load().project
    found, _ = workload_of(project, project.foundation, Store.open(space.store, project), until_us=space.until_us)
    return replace(found, requests=32 * 32)


def test_the_document_is_what_the_cost_model_says_of_the_store(found, workload):
    document, _ = found
    costs = group_costs(workload, Cluster(32, 8, HARDWARE["h100"]))
    assert (
        [group["group_size"] for group in document["groups"]]
        == [cost.group_size for cost in costs]
        == [1, 2, 4, 8, 16, 32]
    )
    assert document["best"] == best_group(costs).group_size
    for group, cost in zip(document["groups"], costs, strict=True):
        assert group["rows_per_s"] == pytest.approx(cost.rows_per_s)
        assert group["memory"]["total"] == pytest.approx(cost.memory.total)
        assert group["sparse"]["total"] == pytest.approx(cost.sparse.total)
    assert document["reliability"]["mtbf_h"] == pytest.approx(1000 / 6.5 / 4 * 24)
    assert document["workload"]["requests_per_step"] == 32 * 32  # the project's 32 for each GPU


def test_people_see_a_table_what_was_assumed_and_what_is_next(found):
    document, text = found
    assert f"{document['best']} *" in text
    places = [text.index(word) for word in ("rows/s", "counted", "assumed", "failures", "not known", "next:")]
    assert places == sorted(places)
    assert "torchrun --nnodes 4 --nproc-per-node 8 -m gemcut train" in text.replace("\n", " ")
    assert "batch_requests=1024" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "12"], ["whole nodes of 8", "12 GPUs", "--gpus 8"]),
        (["--gpus", "0"], ["--gpus", "greater than or equal to 1"]),
        (["--gpus", "8", "--hardware", "h1000"], ["h1000"]),
        (["--gpus", "8", "--batch-requests", "4"], ["a request for each GPU", "--batch-requests 8"]),
        (["--gpus", "8", "--assume", "mfo=0.3"], ["mfo", "Did you mean `mfu`?"]),
        (["--gpus", "8", "--assume", "mfu=2"], ["above 0, at most 1", "2"]),
        (["--gpus", "8", "--assume", "overlap=half"], ["0 to 1", "half"]),
        (["--gpus", "8", "--assume", "dense_shard=1.5"], ["a whole number", "1.5"]),
        (["--gpus", "16", "--assume", "dense_shard=3"], ["a divisor of the GPUs", "3"]),
        (["--gpus", "12", "--assume", "mfu=0", "--assume", "restart_h="], ["3 problems"]),
    ],
)
def test_a_cluster_that_can_not_be_is_refused(gemcut, prepared, arguments, said):
    code, _, text = gemcut("plan", *arguments, "-p", prepared.path)
    assert code == 3
    assert [words for words in said if words not in text] == []


def test_without_a_store_it_says_what_to_run(gemcut, tiny_logs):
    code, _, text = gemcut("plan", "--gpus", "8", "-p", tiny_logs.path)
    assert code == 3
    assert "gemcut prepare" in text


def test_assumptions_change_the_plan(gemcut, prepared, found):
    options = ("--assume", "failures_per_1000_node_days=13", "--assume", "mfu=0.5", "--json")
    code, out, _ = gemcut("plan", "--gpus", "32", *options, "-p", prepared.path)
    assert not code
    changed, before = orjson.loads(out.splitlines()[-1]), found[0]
    assert changed["reliability"]["mtbf_h"] == pytest.approx(before["reliability"]["mtbf_h"] / 2)
    assert changed["groups"][0]["time"]["compute"] == pytest.approx(before["groups"][0]["time"]["compute"] / 2)


def test_where_nothing_fits_it_says_so_and_plans_on(gemcut, prepared):
    options = ("--assume", "memory_share=1e-9", "--json")
    code, out, text = gemcut("plan", "--gpus", "8", *options, "-p", prepared.path)
    assert not code
    document = orjson.loads(out.splitlines()[-1])
    assert (document["best"], document["gpus_that_fit"], document["reliability"]) == (None, None, None)
    assert "no group fits" in text


def test_more_gpus_are_looked_for_until_a_shard_fits(workload):
    large = replace(workload, tables=tuple(replace(table, rows=10**7) for table in workload.tables))
    tight = replace(HARDWARE["h100"], memory_bytes=large.shard_bytes(1) / 10)
    enough = _gpus_that_fit(large, Cluster(8, 8, tight))
    assert enough == 16  # 9/8 of the tables over 16 ranks are below 0.9 of a tenth of them, over 8 above


def test_the_command_line_knows_the_hardware_of_the_cost_model():
    assert {kind.value for kind in Gpu} == set(HARDWARE)


def test_a_cluster_that_never_fails_needs_no_saves(gemcut, prepared):
    options = ("--assume", "failures_per_1000_node_days=0")
    code, _, text = gemcut("plan", "--gpus", "8", *options, "-p", prepared.path)
    assert not code
    assert "none assumed (1 node), so that no save is needed; ETTR 1.000" in text
    assert " inf " not in text
