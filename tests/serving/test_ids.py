"""The hash definition: the published vectors, and the same in Python's own integers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from serving.ids import IdSpace, encode_ints, encode_strings, int_keys, mix64, row_ids, salt_of, string_key

PAGE = (Path(__file__).parents[2] / "docs" / "ids.md").read_text()
TABLES = ("user", "item")
any_id = st.integers(-(2**63), 2**64 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))


def slow_mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def slow_key(value, table):
    return slow_mix((value % 2**64) ^ xxhash.xxh64_intdigest(table.encode(), 0))


def column(values):
    """The integers as a log would hold them: int64 where they fit, else their uint64 patterns."""
    if all(value < 2**63 for value in values):
        return np.array(values, dtype=np.int64)
    return np.array([value % 2**64 for value in values], dtype=np.uint64)


def vectors(section):
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def test_the_page_covers_the_edges():
    assert {int(row[0]) for row in vectors("Integers")} >= {0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1}
    strings = {json.loads(row[0].strip("`")) for row in vectors("Strings")}
    assert strings >= {"", "DELI", "肉類", "🍕", "\u00e9", "e\u0301"}


@pytest.mark.parametrize("row", vectors("Integers"), ids=lambda row: row[0])
def test_published_vectors_of_integers(row):
    value = int(row[0])
    for table, key, place in zip(TABLES, row[1::2], row[2::2], strict=True):
        assert f"{int_keys(column([value]), table)[0]:016x}" == key
        assert encode_ints(column([value]), None, IdSpace(buckets=1000), table).tolist() == [int(place)]


@pytest.mark.parametrize("row", vectors("Strings"), ids=lambda row: row[0])
def test_published_vectors_of_strings(row):
    value = json.loads(row[0].strip("`"))
    for table, key, place in zip(TABLES, row[1::2], row[2::2], strict=True):
        assert f"{string_key(value, salt_of(table)):016x}" == key
        assert encode_strings([value], IdSpace(type="string", buckets=1000), table).tolist() == [int(place)]


@pytest.mark.parametrize("row", vectors("Row ids"), ids=lambda row: row[0])
def test_published_vectors_of_row_ids(row):
    request, item, expected = map(int, row)
    found = row_ids(int_keys(column([request]), "request"), int_keys(column([item]), "item"))
    assert found.tolist() == [expected]


def test_the_page_states_the_constants_of_the_code():
    constants = {int(text, 16) for text in re.findall(r"0x[0-9A-F]{16}", PAGE)}
    assert constants == {0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15}


def test_xxh64_is_the_published_one():
    assert xxhash.xxh64_intdigest(b"", 0) == 0xEF46DB3751D8E999  # of the algorithm's own specification


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_mix64_is_the_formula_in_big_integers(values):
    assert mix64(np.array(values, dtype=np.uint64)).tolist() == [slow_mix(value) for value in values]


@given(st.lists(any_id, min_size=1), st.integers(1, 2**40), st.sampled_from(TABLES))
def test_hashed_integers_are_the_formula_in_big_integers(values, buckets, table):
    space = IdSpace(buckets=buckets)
    rows = encode_ints(column(values), None, space, table)
    assert rows.dtype == np.int64
    assert rows.tolist() == [2 + slow_key(value, table) % buckets for value in values]
    assert rows.min() >= 2
    assert rows.max() < space.num_rows


@given(st.lists(int64s, min_size=1), st.lists(int64s, min_size=1, unique=True))
def test_uint64_columns_are_the_bit_patterns_of_int64_columns(values, vocabulary):
    signed = np.array(values, dtype=np.int64)
    for space in (IdSpace(buckets=977), IdSpace(values=tuple(vocabulary))):
        expected = encode_ints(signed, None, space, "item").tolist()
        assert encode_ints(signed.view(np.uint64), None, space, "item").tolist() == expected
        assert encode_ints(signed.astype(">i8"), None, space, "item").tolist() == expected


@given(st.lists(st.integers(-128, 127), min_size=1))
def test_narrow_columns_mean_what_wide_ones_do(values):
    space = IdSpace(buckets=977)
    narrow, wide = np.array(values, dtype=np.int8), np.array(values, dtype=np.int64)
    assert encode_ints(narrow, None, space, "user").tolist() == encode_ints(wide, None, space, "user").tolist()


@given(st.lists(any_id, min_size=1, max_size=8, unique_by=lambda value: value % 2**64), st.lists(any_id, min_size=1))
def test_listed_integers_have_their_position_and_others_row_1(vocabulary, others):
    patterns = [value % 2**64 for value in vocabulary]
    values = vocabulary + others
    expected = [2 + patterns.index(value % 2**64) if value % 2**64 in patterns else 1 for value in values]
    assert encode_ints(column(values), None, IdSpace(values=tuple(vocabulary)), "user").tolist() == expected


@given(st.lists(st.none() | texts), st.integers(1, 2**40), st.sampled_from(TABLES))
def test_hashed_strings_are_the_formula(values, buckets, table):
    salt = xxhash.xxh64_intdigest(table.encode(), 0)
    hashed = [0 if v is None else 2 + xxhash.xxh64_intdigest(v.encode(), salt) % buckets for v in values]
    rows = encode_strings(values, IdSpace(type="string", buckets=buckets), table)
    assert (rows.dtype, rows.tolist()) == (np.int64, hashed)


@given(st.lists(texts, min_size=1, max_size=8, unique=True), st.lists(st.none() | texts))
def test_listed_strings_have_their_position_others_row_1_and_none_row_0(vocabulary, others):
    values = [*vocabulary, *others]
    expected = [0 if v is None else 2 + vocabulary.index(v) if v in vocabulary else 1 for v in values]
    assert encode_strings(values, IdSpace(type="string", values=tuple(vocabulary)), "user").tolist() == expected


@given(st.lists(st.tuples(int64s, st.booleans()), min_size=1))
def test_missing_integers_are_row_0_whatever_stands_there(pairs):
    values = np.array([value for value, _ in pairs], dtype=np.int64)
    missing = np.array([gone for _, gone in pairs])
    for space in (IdSpace(buckets=11), IdSpace(values=(1, 2))):
        rows = encode_ints(values, missing, space, "user")
        assert ((rows == 0) == missing).all()


@given(st.lists(st.tuples(any_id, any_id), min_size=1))
def test_row_ids_are_the_formula_and_fit_int64(pairs):
    requests, items = (np.array([v % 2**64 for v in values], dtype=np.uint64) for values in zip(*pairs, strict=True))
    rows = row_ids(requests, items)
    expected = [
        slow_mix((int(r) + 0x9E3779B97F4A7C15 * int(i)) % 2**64) >> 1 for r, i in zip(requests, items, strict=True)
    ]
    assert rows.tolist() == expected
    assert (rows >= 0).all()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"buckets": 5, "values": (1,)},
        {"buckets": 0},
        {"values": ()},
        {"values": (1, 1)},
        {"values": (-1, 2**64 - 1)},
        {"values": (2**64,)},
        {"values": (-(2**63) - 1,)},
        {"values": ("a",)},
        {"type": "string", "values": (1,)},
        {"type": "string", "values": ("a", "a")},
        {"type": "float", "buckets": 5},
        {"buckets": 5, "bucket": 5},
    ],
)
def test_malformed_id_spaces_are_refused(fields):
    with pytest.raises(ValidationError):
        IdSpace(**fields)
