"""The last step of `prepare`: rows of candidates, already in the order of requests, become requests with lists."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from foundation.data.batch import Int64Array
from foundation.data.columns import map_columns, parquet_rows
from foundation.data.sources import Source
from foundation.data.sql import quote, readable
from foundation.data.staging import Staging, published
from serving.errors import DataError, Problem
from serving.ids import int_keys, row_ids, salt_of, string_key

REQUESTS_A_ROW_GROUP = 4096
ROW_GROUPS_A_PART = 16
ROWS_A_PART = 2**21  # about; requests with thousands of candidates get shorter parts, which bounds memory


def write_parts(staging: Staging) -> Iterator[float]:
    """Write `requests/part-*.parquet`, those that are not there yet.

    Yields:
        The share of parts that is done, after each.

    Raises:
        DataError: a request shows an item twice, or a row id repeats within a request.
    """
    source = staging.sources["impressions"]
    with (
        pq.ParquetFile(staging.staged / "request.parquet") as requests,
        pq.ParquetFile(staging.staged / "row.parquet") as rows,
    ):
        sizes = requests.read(columns=["num_rows"])["num_rows"].to_numpy()
        firsts = np.concatenate([[0], np.cumsum(sizes)])
        item_keys = (
            None if _brings_row_ids(source) else _keys(map_columns(staging.store / "items.arrow")["item"], "item")
        )
        starts = range(0, len(sizes), _requests_a_part(len(sizes), int(firsts[-1])))
        for part, start in enumerate(starts):
            stop = min(start + starts.step, len(sizes))
            path = staging.store / "requests" / f"part-{part:05d}.parquet"
            if not path.exists():
                shown = parquet_rows(rows, int(firsts[start]), int(firsts[stop]))
                table = _part(parquet_rows(requests, start, stop), shown, source, item_keys)
                with published(path) as aside:
                    pq.write_table(table, aside, row_group_size=REQUESTS_A_ROW_GROUP, compression="zstd")
            yield stop / len(sizes)


def check_row_ids(staging: Staging) -> None:
    """Refuse a row id that occurs twice in the store."""
    source = staging.sources["impressions"]
    files = sorted((staging.store / "requests").glob("*.parquet"))
    parts = f"read_parquet([{', '.join(quote(str(file)) for file in files)}])"
    twice = f"SELECT id FROM (SELECT unnest(row_id) AS id FROM {parts}) GROUP BY id HAVING count(*) > 1"
    with readable(source.files):
        count, example = staging.connection.execute(f"SELECT count(*), min(id) FROM ({twice})").fetchone() or (0, None)
    if count:
        remedy = "Make it unique."
        if not _brings_row_ids(source):
            remedy = "Hashes of different rows collide: name a unique integer column as `row`."
        got = f"{count:,} ids in more than one row, {example} for instance"
        raise DataError(Problem("data.impressions.row", "a row id once", got, remedy))


def _requests_a_part(num_requests: int, num_rows: int) -> int:
    rows_a_group = max(1, num_rows * REQUESTS_A_ROW_GROUP // num_requests)
    return REQUESTS_A_ROW_GROUP * min(ROW_GROUPS_A_PART, max(1, ROWS_A_PART // rows_a_group))


def _part(requests: pa.Table, rows: pa.Table, source: Source, item_keys: NDArray[np.uint64] | None) -> pa.Table:
    """Requests and their rows as one table with list columns, candidates by row id."""
    sizes = requests["num_rows"].to_numpy()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if item_keys is None:
        ids = rows["row_id"].to_numpy()
    else:
        request_keys = _keys(requests["request"].combine_chunks(), "request")
        ids = row_ids(request_keys[owner], item_keys[rows["item"].to_numpy()])
    order = np.lexsort((ids, owner))
    _refuse_repeats(requests, owner, ids[order], source)
    rows = rows.take(order)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())

    def lists(values: pa.ChunkedArray | pa.Array) -> pa.ListArray:
        flat = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return pa.ListArray.from_arrays(offsets, flat)

    columns = {name: requests[name] for name in ("request", "time", "user", "surface", *source.named("context."))}
    columns |= {"candidates": lists(rows["item"]), "row_id": lists(pa.array(ids[order]))}
    columns |= {name: lists(rows[name]) for name in (*source.named("candidate."), *source.named("label."))}
    return pa.table(columns).replace_schema_metadata(None)


def _refuse_repeats(requests: pa.Table, owner: Int64Array, ids: Int64Array, source: Source) -> None:
    """Refuse a row id twice in a request; `ids` are sorted within each request."""
    repeated = (owner[1:] == owner[:-1]) & (ids[1:] == ids[:-1])
    if repeated.any():
        request = requests["request"][int(owner[1:][repeated][0])].as_py()
        got = f"{int(repeated.sum()):,} repeated rows, in request {request!r} for instance"
        expected, remedy = "a row id once", "Make it unique."
        if not _brings_row_ids(source):
            expected, remedy = (
                "an item once a request",
                "Keep one row of each, or name a unique integer column as `row`.",
            )
        raise DataError(Problem("data.impressions", expected, got, remedy))


def _keys(values: pa.Array, table: str) -> NDArray[np.uint64]:
    """64-bit keys of ids, integers or strings."""
    if pa.types.is_integer(values.type):
        return int_keys(values.to_numpy(), table)
    salt = salt_of(table)
    return np.fromiter((string_key(value.as_py(), salt) for value in values), np.uint64, count=len(values))


def _brings_row_ids(source: Source) -> bool:
    return any(column.name == "row_id" for column in source.columns)
