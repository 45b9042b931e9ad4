"""Writing the source tables of an example: all of them, or none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 1 << 17


def write_tables(target: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write `NAME.parquet` into `target` for each table; the same tables give the same bytes.

    Every file is complete on disk under another name before the first one gets its own.
    """
    target.mkdir(parents=True, exist_ok=True)
    partial = {target / f"{name}.parquet": target / f".{name}.parquet.partial" for name in tables}
    try:
        for table, path in zip(tables.values(), partial.values(), strict=True):
            pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP_ROWS)
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        for final, path in partial.items():
            path.replace(final)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)
