"""The one definition of ids: how a raw value becomes the row of an embedding table.

The reader, the exported bundle's preprocessing and the ranker all use this file, so a training row and a served
request can not disagree. Test vectors are published in `docs/ids.md`.

    salt  = xxh64(table name, seed 0)
    key   = mix64(value XOR salt)              integers, mix64 = the finaliser of SplitMix64 (Steele et al. 2014)
            xxh64(utf-8 bytes, seed = salt)    strings, bytes as they come: no Unicode normalisation
    row id of an impression = mix64(key(request, "request") + 0x9E3779B97F4A7C15 * key(item, "item")) >> 1

    row   = 0                                  missing (null)
            1                                  out of vocabulary (only where values are listed)
            2 + key mod buckets                hashed
            2 + position in the list           listed values

Integers are 64-bit patterns, -2^63 to 2^64 - 1: -1 and 2^64 - 1 are the same id, whether a log stores int64 or uint64.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

MISSING = 0
OUT_OF_VOCABULARY = 1
FIRST_ROW = 2

Int64Array = NDArray[np.int64]


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64-bit integers; a bijection, so distinct ids collide only in the modulo.

    Example:
        >>> mix64(np.array([0, 1], dtype=np.uint64)).tolist()
        [0, 6238072747940578789]

    Source: finaliser "mix13" of Stafford, as in SplitMix64 (Steele, Lea, Flood 2014, section 5).
    """
    z = values.astype(np.uint64, copy=True)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


class IdSpace(BaseModel):
    """A table of ids: features that name the same table share its rows.

    Exactly one of `buckets` and `values` is given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    type: Literal["int", "string"] = Field(default="int", description="Type of the raw ids.")
    buckets: int | None = Field(
        default=None, ge=1, le=2**40, description="Number of hash buckets; ids are hashed into them."
    )
    values: tuple[int | str, ...] | None = Field(
        default=None, min_length=1, description="The vocabulary, listed; anything else is out of vocabulary."
    )

    @model_validator(mode="after")
    def _one_vocabulary(self) -> IdSpace:
        if (self.buckets is None) == (self.values is None):
            raise ValueError("expected exactly one of `buckets` (hashed) and `values` (listed)")
        if self.values is not None:
            wanted = int if self.type == "int" else str
            wrong = [value for value in self.values if type(value) is not wanted]
            if wrong:
                raise ValueError(f"expected values of type {self.type}; got {wrong[0]!r}")
            beyond = [value for value in self.values if isinstance(value, int) and not -(2**63) <= value < 2**64]
            if beyond:
                raise ValueError(f"expected integers from -2^63 to 2^64 - 1; got {beyond[0]}")
            if len(self.row_of_value) != len(self.values):
                raise ValueError("expected each value once (-1 and 2^64 - 1 are the same id); got a repeated value")
        return self

    @property
    def num_rows(self) -> int:
        """Rows of the embedding table, the two reserved ones included."""
        size = self.buckets if self.buckets is not None else len(self.values or ())
        return FIRST_ROW + size

    @cached_property
    def row_of_value(self) -> dict[int | str, int]:
        """Row of each listed value; integers as unsigned bit patterns."""
        keys = (value % 2**64 if isinstance(value, int) else value for value in self.values or ())
        return {key: FIRST_ROW + position for position, key in enumerate(keys)}

    @cached_property
    def sorted_values(self) -> tuple[NDArray[np.uint64], Int64Array]:
        """Listed integers in ascending order of their bit patterns, and the row of each."""
        keys = np.fromiter(self.row_of_value.keys(), dtype=np.uint64)
        order = np.argsort(keys)
        return keys[order], order + FIRST_ROW


def salt_of(table: str) -> int:
    """Seed of a table's hash.

    Example:
        >>> hex(salt_of("item"))
        '0x5fe193bb4b6b9cd0'
    """
    return xxhash.xxh64_intdigest(table.encode(), seed=0)


def int_keys(values: NDArray[Any], table: str) -> NDArray[np.uint64]:
    """64-bit keys of integer ids ([N] int64 or uint64, hashed as bit patterns)."""
    return mix64(_bits(values) ^ np.uint64(salt_of(table)))


def string_key(value: str, salt: int) -> int:
    """64-bit key of one string id."""
    return xxhash.xxh64_intdigest(value.encode(), seed=salt)


def row_ids(request_keys: NDArray[np.uint64], item_keys: NDArray[np.uint64]) -> Int64Array:
    """Stable ids of impression rows that bring none of their own: [N] int64, at least 0."""
    mixed = mix64(request_keys + np.uint64(0x9E3779B97F4A7C15) * item_keys)
    return (mixed >> np.uint64(1)).astype(np.int64)


def encode_ints(values: NDArray[Any], missing: NDArray[np.bool_] | None, space: IdSpace, table: str) -> Int64Array:
    """Rows of integer ids.

    Args:
        values: [N] int64 or uint64; 64-bit patterns are hashed as they are, so uint64 keeps its full range.
        missing: [N], True where there is no value; None if every value is there.
        space: the table's id space, `type="int"`.
        table: the table's name, which salts the hash.

    Returns:
        [N] int64, each in [0, space.num_rows).
    """
    if space.values is not None:
        rows = _lookup(_bits(values), *space.sorted_values)
    else:
        rows = (int_keys(values, table) % np.uint64(space.buckets or 1)).astype(np.int64) + FIRST_ROW
    if missing is not None:
        rows[missing] = MISSING
    return rows


def encode_strings(values: list[str | None], space: IdSpace, table: str) -> Int64Array:
    """Rows of string ids, None meaning missing. See `encode_ints`."""
    if space.values is not None:
        known = space.row_of_value
        rows = [MISSING if value is None else known.get(value, OUT_OF_VOCABULARY) for value in values]
    else:
        salt, buckets = salt_of(table), space.buckets or 1
        # Candidates repeat their strings, so each distinct one is hashed once.
        hashed = {value: FIRST_ROW + string_key(value, salt) % buckets for value in set(values) if value is not None}
        rows = [MISSING if value is None else hashed[value] for value in values]
    return np.asarray(rows, dtype=np.int64)


def _bits(values: NDArray[Any]) -> NDArray[np.uint64]:
    integers = np.ascontiguousarray(values)
    return integers.view(np.uint64) if integers.dtype == np.int64 else integers.astype(np.uint64)


def _lookup(keys: NDArray[np.uint64], known: NDArray[np.uint64], rows: Int64Array) -> Int64Array:
    place = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return np.where(known[place] == keys, rows[place], OUT_OF_VOCABULARY)
