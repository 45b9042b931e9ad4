"""One rank of a job that takes every training step of a store once, and counts what it sends to others.

Two counts that know nothing of each other: arguments of each all-to-all, and bytes that the process handed to the
kernel.
"""

import inspect
import os
import sys
from collections import Counter
from pathlib import Path

import orjson
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor

from foundation.config import FoundationConfig
from foundation.data.reader import Reader
from foundation.data.schema import Schema
from foundation.data.store import Store
from foundation.model.inputs import to_tensors
from foundation.parallel.world import joined_world
from foundation.training.foundation_model import build_trainer
from foundation.training.job import FoundationJob

ORDER = ("splits", "lengths", "ids", "embeddings")  # of a forward pass; after all of them the gradients


SIGNATURE = inspect.signature(dist.all_to_all_single)


class AllToAlls:
    """Stands in for `dist.all_to_all_single`: notes what is sent to others, by what it is, then sends it."""

    def __init__(self, rank):
        self.rank, self.kinds = rank, (*ORDER, "gradients")
        self.send, self.sent, self.answered, self.calls = dist.all_to_all_single, Counter(), 0, 0

    def __call__(self, *buffers, **options):
        call = SIGNATURE.bind(*buffers, **options).arguments
        received, sent = call["output"], call["input"]
        kind = self.kinds[self.calls % len(self.kinds)]
        self.calls += 1
        size = dist.get_world_size(call.get("group"))
        splits = call.get("input_split_sizes") or [len(sent) // size] * size
        self.sent[kind] += (sum(splits) - splits[self.rank]) * sent[:1].nbytes
        self.answered += len(received) if kind == "ids" else 0
        return self.send(*buffers, **options)


def written():
    """Bytes that this process has handed to the kernel so far; gloo's among them."""
    return int(dict(line.split(":") for line in Path("/proc/self/io").read_text().splitlines())["wchar"])


def local_bytes(tensors):
    return sum(value.local_tensor().nbytes for value in tensors if isinstance(value, ShardedTensor))


def main():
    task = orjson.loads(Path(sys.argv[1]).read_bytes())
    schema = Schema.model_validate(task["schema"])
    config = FoundationConfig.model_validate(task["config"])
    store = Store.open(Path(task["store"]), schema)
    job = FoundationJob(schema, config, store.folder, store.folder / "unused", task["until_us"])
    positions = store.select(end=task["until_us"])
    with joined_world(1) as world:
        trainer = build_trainer(job, world, store)
        counted = dist.all_to_all_single = AllToAlls(world.rank)
        requests = config.training.batch_requests
        before, steps = written(), 0
        with Reader(store, schema, positions, requests, rank=world.rank, world_size=world.size, prefetch=0) as reader:
            for batch in reader:
                inputs = to_tensors(batch, world.device)
                trainer.step(trainer.prepare(inputs), lambda logits: torch.nan_to_num(logits).square().mean())
                steps += 1
        after = written()
        state = [
            value
            for values in trainer.model.fused_optimizer.state_dict()["state"].values()
            for value in values.values()
        ]
        result = {
            "steps": steps,
            "sent": counted.sent,
            "answered": counted.answered,
            "written": after - before,
            "table_bytes": local_bytes(trainer.model.state_dict().values()),
            "state_bytes": local_bytes(state),
            "dense_parameters": sum(parameter.numel() for parameter in trainer.dense),
        }
    Path(f"{sys.argv[1]}.{os.environ['RANK']}").write_bytes(orjson.dumps(result))


if __name__ == "__main__":
    main()
