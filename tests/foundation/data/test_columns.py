from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foundation.data.columns import map_columns, parquet_rows, write_columns

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("s", pa.large_string()), ("c", pa.int32())])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "x": st.none() | st.floats(allow_nan=False),
            "s": st.none() | st.text(max_size=4),
            "c": st.none() | st.integers(0, 1),
        }
    ),
    max_size=30,
)


@settings(max_examples=50)
@given(rows=rows, cuts=st.lists(st.integers(0, 30)))
def test_rows_come_back_and_bytes_do_not_depend_on_how_the_stream_is_cut(tmp_path_factory, rows, cuts):
    folder = tmp_path_factory.mktemp("columns")
    whole = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    pieces = [whole.slice(a, b - a) for a, b in pairwise(edges)]
    values = {"c": pa.array(["zero", "one"], pa.large_string())}
    for name, batches in (("whole", [whole]), ("pieces", pieces)):
        assert write_columns(folder / name, SCHEMA, batches, scratch=folder, dictionaries=values) == len(rows)

    read = map_columns(folder / "pieces")
    read.validate(full=True)
    names = [None, "zero", "one"]
    assert read.to_pylist() == [row | {"c": names[0 if row["c"] is None else row["c"] + 1]} for row in rows]
    assert (folder / "whole").read_bytes() == (folder / "pieces").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ["pieces", "whole"]


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (0, 1), (3, 3), (2, 7), (3, 6), (9, 10)])
def test_rows_of_a_parquet_file_by_place(tmp_path, start, stop):
    pq.write_table(pa.table({"n": range(10)}), tmp_path / "n.parquet", row_group_size=3)
    with pq.ParquetFile(tmp_path / "n.parquet") as file:
        assert parquet_rows(file, start, stop)["n"].to_pylist() == list(range(start, stop))
