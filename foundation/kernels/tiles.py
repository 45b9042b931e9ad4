"""What attention over jagged rows is cut into on a CPU, so that the scores of one cut stay in a core's cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

TILE_SCORES = 1 << 17  # over all heads; 512 KiB in float32, measured best of 2^16 … 2^19
# Numbers in the rows of a request; below, copying several side by side costs less than a call each.
SMALL_ROWS = 1 << 12


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries that meet keys.

    Attributes:
        queries: rows of the flat queries: a slice, of one request; or [b, M] int64, of b requests, -1 where padded.
        keys: rows of the flat keys, as a slice or [b, L] likewise.
        band: with a window, the least and the greatest (key - query) in places within the tile; None: all pairs.
    """

    queries: slice | Tensor
    keys: slice | Tensor
    band: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    """Where a request's rows begin, and how many there are."""

    query: int
    num_queries: int
    key: int
    num_keys: int

    @property
    def num_rows(self) -> int:
        return self.num_queries + self.num_keys

    @property
    def num_scores(self) -> int:
        return self.num_queries * self.num_keys


def tiles_of(
    query_offsets: Tensor, key_offsets: Tensor, *, heads: int, head_width: int, window: int | None
) -> list[Tile]:
    """Cut a batch; each query of a request is in one tile, with all of the request's keys that it may see.

    Args:
        query_offsets: [B + 1] int64.
        key_offsets: [B + 1] int64.
        heads: attention heads, which a tile has all of.
        head_width: numbers of a row and head.
        window: for self-attention, keys within so many places of the query; None: all.

    Returns:
        Tiles whose queries do not overlap; requests without queries or without keys are in none.

    Source: ours; the order of work is FlashAttention's (arXiv 2205.14135, section 3.1), the tiles a CPU's.
    """
    rows = zip(pairwise(query_offsets.tolist()), pairwise(key_offsets.tolist()), strict=True)
    requests = [_Request(q, q_end - q, k, k_end - k) for (q, q_end), (k, k_end) in rows if q_end > q and k_end > k]
    if window is not None:
        return [tile for request in requests for tile in _windowed(request, window)]
    most_rows = SMALL_ROWS // (heads * head_width)
    small = [request for request in requests if request.num_rows < most_rows]
    large = [request for request in requests if request.num_rows >= most_rows]
    return [tile for request in large for tile in _cut(request, heads)] + _together(small, heads)


def _cut(request: _Request, heads: int) -> list[Tile]:
    """Even blocks of one request's queries, each with all keys."""
    keys = slice(request.key, request.key + request.num_keys)
    num_blocks = -(-request.num_scores * heads // TILE_SCORES)
    block = -(-request.num_queries // num_blocks)
    end = request.query + request.num_queries
    return [Tile(slice(start, min(start + block, end)), keys) for start in range(request.query, end, block)]


def _windowed(request: _Request, window: int) -> list[Tile]:
    """Blocks of one history, each with the events within a window's reach; from 32 on half of the scores are seen."""
    block = max(2 * window, 64)  # measured flat from 64 to 128 for windows of 16 to 128
    tiles: list[Tile] = []
    for start in range(0, request.num_queries, block):
        stop = min(start + block, request.num_queries)
        low, high = max(start - window, 0), min(stop + window, request.num_keys)
        queries = slice(request.query + start, request.query + stop)
        keys = slice(request.key + low, request.key + high)
        tiles.append(Tile(queries, keys, (start - low - window, start - low + window)))
    return tiles


def _together(requests: list[_Request], heads: int) -> list[Tile]:
    """Small requests of like sizes side by side, padded to the largest of their tile."""
    tiles: list[Tile] = []
    batch: list[_Request] = []
    for request in sorted(requests, key=lambda r: (r.num_queries.bit_length(), r.num_keys)):
        if batch and not _alike(batch, request, heads):
            tiles.append(_side_by_side(batch))
            batch = []
        batch.append(request)
    return [*tiles, _side_by_side(batch)] if batch else tiles


def _alike(batch: list[_Request], request: _Request, heads: int) -> bool:
    first = batch[0]
    return (
        request.num_queries.bit_length() == first.num_queries.bit_length()
        and request.num_keys <= first.num_keys * 1.25 + 4
        and (len(batch) + 1) * (2 * request.num_queries) * request.num_keys * heads <= TILE_SCORES
    )


def _side_by_side(batch: list[_Request]) -> Tile:
    return Tile(
        _places([(r.query, r.num_queries) for r in batch]),
        _places([(r.key, r.num_keys) for r in batch]),
    )


def _places(spans: list[tuple[int, int]]) -> Tensor:
    """[b, longest] int64 rows of (start, count) spans; -1 where padded."""
    start, count = torch.tensor(spans).unsqueeze(2).unbind(1)
    step = torch.arange(int(count.max()))
    return torch.where(step < count, start + step, -1)
