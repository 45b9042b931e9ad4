"""Tokens of ids: TorchRec's embedding tables, one row-sharded collection for the whole model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig

from foundation.data.schema import Schema
from foundation.model.inputs import RequestTensors, feature_keys, keyed_ids


def module_name(table: str) -> str:
    """Name of a table inside the collection; the prefix keeps it clear of `nn.Module`'s own attributes."""
    return f"table_{table}"


def row_init(weight: Tensor) -> Tensor:
    """Normal rows with standard deviation 0.05; row 0, "missing", is zeros and stays a neutral start."""
    nn.init.normal_(weight, std=0.05)
    with torch.no_grad():
        weight[:1].zero_()  # a rank may hold none of a table with fewer rows than ranks
    return weight


class TokenEmbedding(nn.Module):
    """Looks up every id feature of a batch.

    The collection is made on the meta device: `foundation.parallel` shards it and gives it memory.
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
                    init_fn=row_init,
                )
                for table, names in features.items()
            ],
            device=torch.device("meta"),
        )

    def forward(self, batch: RequestTensors) -> dict[str, Tensor]:
        """Embeddings by feature key, each [N, D] with N the feature's requests, candidates or events."""
        jagged = self.collection(keyed_ids(batch, self.keys))
        return {key: jagged[key].values() for key, _ in self.keys}
