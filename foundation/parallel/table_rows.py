"""The first rows of a table: the same however it is cut, and however many rows it has."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

STANDARD_DEVIATION = 0.05
BLOCK_ROWS = 4096


def first_rows(table: str, seed: int, *, first: int, num: int, width: int) -> Tensor:
    """Rows `first` to `first + num` of a new table.

    Normal with standard deviation 0.05, but row 0, "missing", is zeros: a neutral start. A row depends on the table's
    name, the seed, its width and its number alone: any ranks start from the same table, and rows that are added to a
    vocabulary later are what they would have been from the start.

    Returns:
        [num, width] float32.

    Example:
        >>> whole = first_rows("item", 7, first=0, num=6, width=2)
        >>> torch.equal(whole[4:], first_rows("item", 7, first=4, num=2, width=2)), whole[0].tolist()
        (True, [0.0, 0.0])
    """
    rows = torch.empty(num, width)
    for block in range(first // BLOCK_ROWS, -(-(first + num) // BLOCK_ROWS)):
        digest = hashlib.sha256(f"{seed}/{table}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)
        drawn = torch.empty(BLOCK_ROWS, width).normal_(0, STANDARD_DEVIATION, generator=generator)
        start = block * BLOCK_ROWS
        low, high = max(first, start), min(first + num, start + BLOCK_ROWS)
        rows[low - first : high - first] = drawn[low - start : high - start]
    if first == 0:
        rows[:1] = 0
    return rows
