"""Raw Arrow columns as what a model sees, by the definitions of `serving.ids` and `serving.numbers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foundation.data.batch import Float32Array, Int64Array
from foundation.data.columns import as_numpy
from foundation.data.schema import Feature, Schema, ids_of, numbers_of
from serving.ids import MISSING, IdSpace, encode_ints, encode_strings
from serving.numbers import NumberRule, encode_numbers


def encode_ids(column: pa.Array, space: IdSpace, table: str) -> Int64Array:
    """Table rows of a column of integers, strings, or dictionary-encoded strings; each distinct string is hashed once.

    Args:
        column: [N], one chunk.
        space: the table's id space, of the column's type.
        table: the table's name.

    Returns:
        [N] int64, each in [0, space.num_rows); 0 where the column is null.

    Example:
        >>> encode_ids(pa.array(["b", None, "z"]), IdSpace(type="string", values=("a", "b")), "colour").tolist()
        [3, 0, 1]
    """
    if pa.types.is_dictionary(column.type):
        rows = np.append(encode_strings(column.dictionary.to_pylist(), space, table), MISSING)
        return rows[filled(column.indices, len(rows) - 1)]
    if space.type == "string":
        return encode_ids(column.dictionary_encode(), space, table)
    missing = as_numpy(column.is_null().cast(pa.uint8())).view(np.bool_) if column.null_count else None
    return encode_ints(filled(column, 0).astype(np.int64, copy=False), missing, space, table)


def encode_number(column: pa.Array, rule: NumberRule) -> Float32Array:
    """Model inputs of a float64 column: [N] float32; null counts as missing."""
    return encode_numbers(filled(column, np.nan), rule)


def filled(column: pa.Array, null: float) -> NDArray[Any]:
    """A column of numbers as numpy, `null` where there is no value; no copy if there is always one."""
    if not column.null_count:
        return as_numpy(column)
    whole = pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    values = as_numpy(whole).copy()
    values[as_numpy(column.is_null().cast(pa.uint8())).view(np.bool_)] = null
    return values


def matrices(
    columns: Mapping[str, pa.Array], features: tuple[Feature, ...], schema: Schema, *, num_rows: int
) -> tuple[Int64Array, Float32Array]:
    """Features side by side, ids and numbers apart, each in the features' order.

    Args:
        columns: raw columns by feature name, each [num_rows].
        features: the features.
        schema: gives their id spaces.
        num_rows: N; needed where there are no features.

    Returns:
        [N, F] int64 and [N, G] float32.
    """
    ids = np.empty((num_rows, len(ids_of(features))), dtype=np.int64)
    for place, feature in enumerate(ids_of(features)):
        table = feature.table_name
        ids[:, place] = encode_ids(columns[feature.name], schema.id_space(table), table)
    numbers = np.empty((num_rows, len(numbers_of(features))), dtype=np.float32)
    for place, feature in enumerate(numbers_of(features)):
        numbers[:, place] = encode_number(columns[feature.name], feature.rule)
    return ids, numbers
