import numpy as np
import pyarrow as pa
import pytest

from foundation.data.encode import encode_ids, encode_number
from serving.ids import IdSpace, encode_ints, encode_strings
from serving.numbers import NumberRule

STRINGS = ["a", None, "ä", "a", "", "日本"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("space", [{"buckets": 11}, {"values": ("", "a")}])
def test_a_string_has_one_row_however_arrow_stores_it(kind, space):
    space = IdSpace(type="string", **space)
    rows = encode_ids(pa.array(STRINGS).cast(kind), space, "brand")
    assert rows.tolist() == encode_strings(STRINGS, space, "brand").tolist()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
def test_an_integer_has_one_row_whatever_its_width(kind):
    space = IdSpace(buckets=13)
    rows = encode_ids(pa.array([5, None, -3], kind), space, "item")
    assert rows.tolist() == encode_ints(np.array([5, 0, -3]), np.array([False, True, False]), space, "item").tolist()


def test_a_slice_of_a_column_is_encoded_as_what_it_shows():
    space = IdSpace(type="string", values=("x", "y"))
    assert encode_ids(pa.array(["x", None, "y", "x"]).slice(1, 2), space, "t").tolist() == [0, 3]
    assert encode_ids(pa.array([1, None, 2]).slice(1, 1), IdSpace(values=(1, 2)), "t").tolist() == [0]


def test_a_null_number_is_missing():
    assert encode_number(pa.array([2.0, None]), NumberRule(shift=1.0)).tolist() == [1.0, 0.0]
