"""One rank of four that learn one table in two copies, from given gradients; it leaves the rows that it got."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import torch
from torch import nn

from foundation.config import ParallelConfig
from foundation.data.reader import Reader
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.model.embedding import TableModel, TokenEmbedding
from foundation.model.inputs import to_tensors
from foundation.parallel.gather import own_copy
from foundation.parallel.shards import local_shards
from foundation.parallel.world import joined_world
from foundation.training.trainer import Trainer, TrainerConfig


class OneTable(TableModel):
    """The users' rows, times a weight that is 1."""

    def __init__(self, schema, width):
        super().__init__()
        self.embedding = TokenEmbedding(schema, (), width)
        self.weight = nn.Parameter(torch.ones(()))

    def read(self, batch):
        return replace(batch, histories={})

    def forward(self, inputs):
        return inputs.tokens["request.user"] * self.weight


def main():
    task = orjson.loads(Path(sys.argv[1]).read_bytes())
    schema = Schema.model_validate(task["schema"])
    store = Store.open(Path(task["store"]), schema)
    given = np.load(task["gradients"])  # [steps, ranks, requests, width]
    with joined_world(1) as world:
        torch.manual_seed(0)
        config = TrainerConfig(0.0, task["rate"], parallel=ParallelConfig(sharding_group=2))
        trainer = Trainer(OneTable(schema, given.shape[-1]), world, config)
        positions = store.select()[: given.shape[2]]
        with Reader(store, schema, positions, len(positions), prefetch=0) as reader:
            (batch,) = reader
        inputs = to_tensors(batch, world.device)
        users = torch.from_numpy(np.load(task["users"]))
        for step in range(len(given)):
            asked = replace(inputs, ids=inputs.ids.clone())
            asked.ids[:, task["column"]] = users[step, world.rank]
            factor = torch.from_numpy(given[step, world.rank])
            trainer.step(trainer.prepare(asked), lambda out, f=factor: (out * f).sum())
        tables = {name: value for name, value in trainer.model.state_dict().items() if "table_user" in name}
        kept = {name: own_copy(value) for name, value in tables.items()}
        rows = {str(shard.offsets[0]): shard.tensor.tolist() for shard in local_shards(kept)}
    Path(f"{sys.argv[1]}.{os.environ['RANK']}").write_bytes(orjson.dumps(rows))


if __name__ == "__main__":
    main()
