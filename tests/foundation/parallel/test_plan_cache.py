"""A plan is made once for the same tables, constraints and ranks."""

import dataclasses

import pytest
from torch import nn
from torchrec import EmbeddingConfig

from foundation.config import TablePlacement
from foundation.model.embedding import TokenEmbedding
from foundation.parallel.plan import table_plan
from foundation.parallel.plan_cache import plan_digest, remembered_plan
from foundation.parallel.world import joined_world
from tests.foundation.training.conftest import read_schema

PLAN = {
    "item": TablePlacement.model_validate({"kind": "row_wise"}),
    "user": TablePlacement.model_validate({"kind": "table_wise", "ranks": [1]}),
}
TABLE = EmbeddingConfig(name="table_item", num_embeddings=100, embedding_dim=8, feature_names=["item"])


@pytest.fixture
def make():
    made = []

    def run():
        made.append(PLAN)
        return dict(PLAN)

    run.made = made
    return run


def digest(*tables, pinned=None, group_size=2, device_type="cpu"):
    return plan_digest(tables or (TABLE,), pinned or {}, group_size=group_size, device_type=device_type)


def test_a_plan_is_made_once_and_comes_back_the_same(tmp_path, make):
    assert [remembered_plan(tmp_path, digest(), make) for _ in range(3)] == [PLAN] * 3
    assert len(make.made) == 1


def test_what_a_plan_depends_on_is_in_its_digest(monkeypatch):
    changes = {"num_embeddings": 101, "embedding_dim": 4, "feature_names": ["item", "seen"], "name": "table_user"}
    found = [digest(dataclasses.replace(TABLE, **{name: value})) for name, value in changes.items()]
    found += [digest(), digest(TABLE, TABLE), digest(group_size=4), digest(device_type="cuda"), digest(pinned=PLAN)]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    found.append(digest())
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("content", [b"", b"{", b'{"item": {"kind": "sideways"}}'])
def test_a_file_that_is_not_a_plan_is_made_anew(tmp_path, make, content):
    remembered_plan(tmp_path, digest(), make)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert [remembered_plan(tmp_path, digest(), make) for _ in range(2)] == [PLAN] * 2
    assert len(make.made) == 2


def test_where_nothing_can_be_kept_it_is_made_each_time(tmp_path, make):
    (tmp_path / "file").touch()
    assert [remembered_plan(tmp_path / "file", digest(), make) for _ in range(2)] == [PLAN] * 2
    assert len(make.made) == 2


def test_tables_are_in_the_model_s_order_whether_the_plan_was_made_or_read(tmp_path):
    """TorchRec meets the other ranks table by table: a rank that reads what another has just made meets it in order."""
    schema, _ = read_schema()
    model = nn.Sequential(TokenEmbedding(schema, (), 8))
    with joined_world(1):
        orders = [
            list(table_plan(model, {}, group_size=2, device_type="cpu", remembered_in=tmp_path)) for _ in range(2)
        ]
    expected = [config.name.removeprefix("table_") for config in model[0].collection.embedding_configs()]
    assert expected != sorted(expected)
    assert orders == [expected, expected]
