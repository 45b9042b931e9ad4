"""Tables in two copies learn by momentum-scaled row-wise AdaGrad, as it is written down."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import torch
from torchrec.distributed.model_parallel import DMPCollection

from foundation.data.schema import ids_of
from foundation.parallel.mesh import strided_groups
from foundation.parallel.plan import move_to_group, sharding_plan, table_plan
from foundation.parallel.sharding import EPSILON
from foundation.parallel.table_rows import first_rows
from foundation.parallel.world import joined_world
from tests.foundation.parallel.copies_job import OneTable
from tests.foundation.training.conftest import made_store

STEPS, RANKS, REQUESTS, WIDTH, RATE = 6, 4, 5, 4, 0.1
COPIES_JOB = Path(__file__).with_name("copies_job.py")
DEADLINE_S = 120

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return made_store(tmp_path_factory.mktemp("copies"), seed=0)


def learned_rows(tmp_path, log, users, gradients):
    """The users' table of each copy after training, [rows, width]."""
    features = [feature.name for feature in ids_of(log.schema.request_features())]
    np.save(tmp_path / "gradients.npy", gradients)
    np.save(tmp_path / "users.npy", users)
    task = {
        "schema": log.schema.model_dump(mode="json"),
        "store": str(log.folder),
        "gradients": str(tmp_path / "gradients.npy"),
        "users": str(tmp_path / "users.npy"),
        "column": features.index("user"),
        "rate": RATE,
    }
    path = tmp_path / "task.json"
    path.write_bytes(orjson.dumps(task))
    meeting = {"WORLD_SIZE": str(RANKS), "GEMCUT_MEETING_FILE": str(tmp_path / "meeting")}
    ranks = [
        subprocess.Popen(
            [sys.executable, COPIES_JOB, path],
            env=os.environ | meeting | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]
    try:
        errors = [process.communicate(timeout=DEADLINE_S)[1].decode() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * RANKS, "\n".join(errors)
    shards = [orjson.loads(Path(f"{path}.{rank}").read_bytes()) for rank in range(RANKS)]
    copies = []
    for group in ([0, 2], [1, 3]):
        parts = {int(first): rows for rank in group for first, rows in shards[rank].items()}
        copies.append(np.concatenate([np.array(parts[first]) for first in sorted(parts)]))
    return copies


def reference(num_rows, users, gradients):
    """arXiv 2508.03854 with groups 0, 2 and 1, 3: `w -= lr g / (sqrt(v / M) + eps)`, then means of w and v."""
    rows = first_rows("user", 0, first=0, num=num_rows, width=WIDTH).numpy().astype(np.float64)
    sums = np.zeros(num_rows)
    for step in range(STEPS):
        copies = []
        for group in ([0, 2], [1, 3]):
            w, v, gradient = rows.copy(), sums.copy(), np.zeros_like(rows)
            for rank in group:
                np.add.at(gradient, users[step, rank], gradients[step, rank] / len(group))
            v += (gradient**2).mean(axis=1)
            asked = np.unique(users[step, group])
            w[asked] -= RATE * gradient[asked] / (np.sqrt(v[asked, None] / 2) + EPSILON)
            copies.append((w, v))
        rows, sums = (np.mean(parts, axis=0) for parts in zip(*copies, strict=True))
    return rows


def test_two_copies_learn_by_scaled_adagrad_and_are_averaged(tmp_path, log):
    random = np.random.default_rng(5)
    num_rows = log.schema.id_space("user").num_rows
    users = random.integers(0, 12, (STEPS, RANKS, REQUESTS))
    users[1, 0] = num_rows - 1  # a row of the second shard, which one copy alone meets
    gradients = random.normal(size=(STEPS, RANKS, REQUESTS, WIDTH)).astype(np.float32)
    expected = reference(num_rows, users, gradients)
    for rows in learned_rows(tmp_path, log, users, gradients):
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("world_size", "group_size"), [(4, 2), (8, 4), (8, 2), (6, 3), (4, 1), (4, 4)])
def test_groups_and_plans_are_those_of_torchrecs_collection(world_size, group_size, log, monkeypatch):
    """`DMPCollection` itself asserts CUDA; its arithmetic is what ours is held to."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world_size))
    collection = SimpleNamespace(_device=torch.device("cpu"))
    with joined_world(1):  # TorchRec asks it for the ranks of a node
        groups = strided_groups(world_size, group_size)
        assert sorted(rank for group in groups for rank in group) == list(range(world_size))
        for number, group in enumerate(groups):
            for rank in group:
                model = OneTable(log.schema, WIDTH)
                plan = table_plan(model, {}, group_size=group_size, device_type="cpu")
                ours, theirs = (sharding_plan(model, plan, group_size=group_size, device_type="cpu") for _ in range(2))
                num_groups = world_size // group_size
                move_to_group(ours, number, num_groups, device_type="cpu")
                DMPCollection._remap_sharding_plan(collection, theirs, rank, num_groups, group_size)
                for name, tables in theirs.plan.items():
                    for table, placement in tables.items():
                        found = ours.plan[name][table]
                        assert found.ranks == placement.ranks
                        assert [s.placement.rank() for s in found.sharding_spec.shards] == [
                            s.placement.rank() for s in placement.sharding_spec.shards
                        ]
                        assert set(found.ranks) <= set(group)
