"""Tokens of ids: TorchRec's embedding tables, one sharded collection for the whole model; and what reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.types import ShardedModule

from foundation.data.schema import Schema
from foundation.model.inputs import RequestTensors, feature_keys, keyed_ids


def module_name(table: str) -> str:
    """Name of a table inside the collection; the prefix keeps it clear of `nn.Module`'s own attributes."""
    return f"table_{table}"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Ids on their way to the ranks that hold their rows.

    Attributes:
        ids: as they were asked for.
        context, arriving: TorchRec's, of a collection that is spread over ranks.
    """

    ids: KeyedJaggedTensor
    context: Any = None
    arriving: Any = None


class TokenEmbedding(nn.Module):
    """Looks up every id feature of a batch.

    The collection is made on the meta device: `foundation.parallel` shards it and gives it memory and first rows.
    """

    def __init__(self, schema: Schema, logs: tuple[str, ...], width: int) -> None:
        super().__init__()
        self.keys = feature_keys(schema, logs)
        features: dict[str, list[str]] = {}
        for key, table in self.keys:
            features.setdefault(table, []).append(key)
        self.collection = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=module_name(table),
                    num_embeddings=schema.id_space(table).num_rows,
                    embedding_dim=width,
                    feature_names=names,
                    init_fn=nn.init.zeros_,
                )
                for table, names in features.items()
            ],
            device=torch.device("meta"),
        )

    def start(self, batch: RequestTensors) -> Lookup:
        """Send a batch's ids out; it reads no parameter, so a learning step may come before the rows are asked for."""
        ids = keyed_ids(batch, self.keys)
        if not isinstance(self.collection, ShardedModule):
            return Lookup(ids)
        sharded = cast("ShardedModule[Any, Any, Any, Any]", self.collection)
        context = sharded.create_context()
        return Lookup(ids, context, sharded.input_dist(context, ids).wait())

    def forward(self, lookup: Lookup) -> dict[str, Tensor]:
        """Embeddings by feature key, each [N, D] with N the feature's requests, candidates or events."""
        if lookup.context is None:
            jagged = self.collection(lookup.ids)
        else:
            sharded = cast("ShardedModule[Any, Any, Any, Any]", self.collection)
            jagged = sharded.compute_and_output_dist(lookup.context, lookup.arriving.wait())
        return {key: jagged[key].values() for key, _ in self.keys}


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A batch and the rows of its ids.

    Attributes:
        read: the batch with the histories that were looked up.
        tokens: embeddings by feature key, of `read`.
    """

    batch: RequestTensors
    read: RequestTensors
    tokens: dict[str, Tensor]


class TableModel(nn.Module):
    """A model in two parts: tables, whose rows are looked up first, and a dense part that reads what was found.

    They are apart because a batch is scored and then learned from by the same rows, and because its ids can travel
    while the dense part is busy with the batch before.
    """

    embedding: TokenEmbedding

    def read(self, batch: RequestTensors) -> RequestTensors:
        """The batch with the histories whose ids the model looks up; by default all of them."""
        return batch

    def blocks(self) -> list[nn.Module]:
        """Large parts of the dense part, none inside another, whose parameters only they themselves read."""
        return []

    def of_batch(self, batch: RequestTensors) -> Any:
        """Both parts: look up, then what `forward` makes of the `LookedUp`."""
        read = self.read(batch)
        return self(LookedUp(batch, read, self.embedding(self.embedding.start(read))))
