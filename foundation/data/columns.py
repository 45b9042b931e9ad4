"""Arrow files of one record batch, written column by column out of a stream and read back memory-mapped.

One batch means that a column is one contiguous array, so numpy sees the file itself. A writer that held it in memory
would need as much memory as the log; this one appends to a flat file a buffer and then hands Arrow the mapped files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

PACKED_AT_ONCE = 2**20  # rows; a multiple of 8, so that bits of different pieces do not share a byte


def write_columns(
    path: Path,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    scratch: Path,
    dictionaries: Mapping[str, pa.Array] | None = None,
) -> int:
    """Write a stream of record batches as one batch; the same rows give the same bytes, however the stream is cut.

    Args:
        path: the file to write; not atomic, the caller renames.
        schema: columns of int8, int32, int64, float64 or large_string. The batches have these columns in this order.
        batches: the rows.
        scratch: an existing folder for flat files, as large as the result.
        dictionaries: values of the int32 columns that are codes; they become dictionary columns.

    Returns:
        The number of rows.
    """
    num_rows = 0
    with ExitStack() as stack:
        buffers = [_Buffers(scratch / str(place), field.type) for place, field in enumerate(schema)]
        for column in buffers:
            stack.callback(column.close)
        for batch in batches:
            for column, values in zip(buffers, batch.columns, strict=True):
                column.append(values)
            num_rows += batch.num_rows
        columns = [column.finish(num_rows) for column in buffers]
        for place, values in enumerate(dictionaries.get(name) if dictionaries else None for name in schema.names):
            if values is not None:
                columns[place] = pa.DictionaryArray.from_arrays(columns[place], values)
        batch = pa.RecordBatch.from_arrays(columns, names=schema.names)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        del columns, batch
    return num_rows


def map_columns(path: Path) -> pa.RecordBatch:
    """The file's record batch, memory-mapped: nothing is read until it is used."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        if reader.num_record_batches != 1:
            message = f"expected one record batch; got {reader.num_record_batches}"
            raise pa.ArrowInvalid(message)
        return reader.get_batch(0)


def as_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """A column of numbers, none of which is null, as numpy; no copy if it is in one piece.

    Arrow's own `to_numpy` imports pandas wherever that is installed, which is a tenth of a training's start.

    Example:
        >>> as_numpy(pa.chunked_array([[1, 2], [3]])).tolist()
        [1, 2, 3]
    """
    if isinstance(column, pa.Array):
        return np.from_dlpack(column)
    if column.num_chunks == 1:
        return np.from_dlpack(column.chunk(0))
    return np.from_dlpack(column.combine_chunks())


def as_indices(rows: NDArray[np.int64]) -> pa.Array:
    """Rows to `take` from a column or table, without a copy; `pa.array` imports pandas too."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows, np.int64))])


def parquet_batches(path: Path, columns: list[str], *, rows: int = 2**17) -> Iterator[pa.RecordBatch]:
    """The file's rows in order, so many at a time."""
    with pq.ParquetFile(path, memory_map=True) as file:
        yield from file.iter_batches(batch_size=rows, columns=columns)


def parquet_rows(file: pq.ParquetFile, start: int, stop: int) -> pa.Table:
    """Rows start to stop of a parquet file, reading only the row groups that hold them."""
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    firsts = np.cumsum([0, *sizes])
    groups = [group for group in range(len(sizes)) if firsts[group] < stop and firsts[group + 1] > start]
    table = file.read_row_groups(groups)
    return table.slice(start - int(firsts[groups[0]]), stop - start) if groups else table


class _Buffers:
    """The flat files of one column: values, one byte a row for "is there a value", and ends of strings."""

    def __init__(self, path: Path, kind: pa.DataType) -> None:
        self._kind, self._path = kind, path
        self._is_string = pa.types.is_large_string(kind)
        self._size, self._num_nulls = 0, 0
        self._values, self._known, self._ends = (self._open(name) for name in ("values", "known", "ends"))
        if self._is_string:
            np.zeros(1, np.int64).tofile(self._ends)

    def append(self, column: pa.Array) -> None:
        self._num_nulls += column.null_count
        column.is_valid().cast(pa.uint8()).to_numpy().tofile(self._known)
        if not self._is_string:
            column.cast(self._kind).fill_null(0).to_numpy().tofile(self._values)
            return
        strings = column.cast(pa.large_string()).fill_null("")
        ends = np.frombuffer(strings.buffers()[1], np.int64)[strings.offset : strings.offset + len(strings) + 1]
        if len(strings):
            (ends[1:] + (self._size - ends[0])).tofile(self._ends)
            self._values.write(strings.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0])))
            self._size += int(ends[-1] - ends[0])

    def finish(self, num_rows: int) -> pa.Array:
        validity = None
        if self._num_nulls:
            packed = self._open("packed")
            self._known.seek(0)
            while piece := self._known.read(PACKED_AT_ONCE):
                np.packbits(np.frombuffer(piece, np.uint8), bitorder="little").tofile(packed)
            validity = _mapped(packed)
            packed.close()
        values = _mapped(self._values)
        buffers = [validity, _mapped(self._ends), values] if self._is_string else [validity, values]
        return pa.Array.from_buffers(self._kind, num_rows, buffers, null_count=self._num_nulls)

    def close(self) -> None:
        for file in (self._values, self._known, self._ends):
            file.close()
        for name in ("values", "known", "ends", "packed"):
            self._path.with_suffix(f".{name}").unlink(missing_ok=True)

    def _open(self, name: str) -> BinaryIO:
        return self._path.with_suffix(f".{name}").open("w+b")


def _mapped(file: BinaryIO) -> pa.Buffer:
    file.flush()
    if not Path(file.name).stat().st_size:
        return pa.py_buffer(b"")
    with pa.memory_map(file.name) as source:
        return source.read_buffer()
