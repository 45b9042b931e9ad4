"""Raw columns to graph inputs: the same `ids` and `numbers` that training uses, plus a strict look at raw types."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from serving.ages import age_days
from serving.errors import Problem, RequestError, did_you_mean, listed, shortened
from serving.ids import IdSpace, Int64Array, encode_ints, encode_strings
from serving.manifest import IdInput, Input, Manifest, NumberInput
from serving.numbers import encode_numbers

FloatArray = NDArray[np.float32]
Column = Sequence[Any] | NDArray[Any]
Columns = Mapping[str, Column]

TIME = "time"
_LARGEST_WHOLE_FLOAT = 2**53  # beyond it a float no longer tells neighbouring integers apart
_NONE = type(None)


@dataclass(frozen=True)
class Group:
    """Features that come together and fill one pair of graph inputs.

    Attributes:
        where: the group's name in messages.
        ids, numbers: names of its graph inputs.
        features: in order.
        rows: its number of rows if that is fixed.
        newest: how many of its last rows are used; all if None.
        ages: name of the graph input of the rows' ages; None for rows that have no time.
    """

    where: str
    ids: str
    numbers: str
    features: tuple[Input, ...]
    rows: int | None = None
    newest: int | None = None
    ages: str | None = None

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the columns: the features, and the time where rows have one."""
        timed = (TIME,) if self.ages is not None else ()
        return frozenset((*(feature.name for feature in self.features), *timed))

    @cached_property
    def num_ids(self) -> int:
        """Columns of the input of ids."""
        return sum(isinstance(feature, IdInput) for feature in self.features)

    @property
    def num_numbers(self) -> int:
        """Columns of the input of numbers."""
        return len(self.features) - self.num_ids


def groups_of(manifest: Manifest) -> tuple[Group, Group, dict[str, Group]]:
    """The request's group, the candidates' group, and each log's group."""
    histories = {
        history.log: Group(
            f"histories.{history.log}",
            f"history_ids.{history.log}",
            f"history_numbers.{history.log}",
            history.features,
            newest=history.limit,
            ages=f"history_ages.{history.log}",
        )
        for history in manifest.histories
    }
    request = Group("request", "request_ids", "request_numbers", manifest.request, rows=1)
    return request, Group("candidates", "candidate_ids", "candidate_numbers", manifest.candidate), histories


def check_columns(columns: Any, group: Group) -> int:
    """Number of rows of a group's columns.

    Raises:
        RequestError: a name is unknown or absent, a column is no list or array, or lengths differ.
    """
    if not isinstance(columns, Mapping):
        remedy = "Send an object with one entry for each feature."
        raise RequestError(Problem(group.where, "a mapping of feature to values", shortened(columns), remedy))
    if columns.keys() ^ group.names:
        raise RequestError(_name_problems(columns, group))
    lengths: dict[int, str] = {}
    for name, column in columns.items():
        if not isinstance(column, list | tuple | np.ndarray) or (isinstance(column, np.ndarray) and column.ndim != 1):
            where, expected = f"{group.where}.{name}", "a list or a one-dimensional array"
            raise RequestError(Problem(where, expected, shortened(column), "Send one value a row."))
        lengths.setdefault(len(column), name)
    if len(lengths) > 1:
        got = ", ".join(f"{length} in `{name}`" for length, name in lengths.items())
        raise RequestError(Problem(group.where, "columns of one length", got, "Send one value a row in every column."))
    return next(iter(lengths), 0)


def encode_columns(columns: Columns, group: Group, *, tables: Mapping[str, IdSpace]) -> dict[str, NDArray[Any]]:
    """Graph inputs of one group.

    Args:
        columns: checked by `check_columns`; None in a column is a missing value.
        group: their features.
        tables: id space of each table.

    Returns:
        ids [N, F] int64 and numbers [N, G] float32 by their names; one of no width is left out.

    Raises:
        RequestError: a value is not of its feature's type; every such feature is listed.
    """
    rows = len(next(iter(columns.values()), ()))
    ids = np.empty((rows, group.num_ids), dtype=np.int64)
    numbers = np.empty((rows, group.num_numbers), dtype=np.float32)
    problems: list[Problem] = []
    at_id = at_number = 0
    for feature in group.features:
        column, where = columns[feature.name], f"{group.where}.{feature.name}"
        try:
            match feature:
                case IdInput():
                    ids[:, at_id] = _encode_ids(column, feature.table, space=tables[feature.table], where=where)
                    at_id += 1
                case NumberInput():
                    numbers[:, at_number] = encode_numbers(_raw_numbers(column, where), feature.rule)
                    at_number += 1
                case _:
                    assert_never(feature)
        except RequestError as error:
            problems.extend(error.problems)
    if problems:
        raise RequestError(problems)
    return {name: array for name, array in ((group.ids, ids), (group.numbers, numbers)) if array.shape[1]}


def request_time(request: Mapping[str, Any]) -> int:
    """When the request happens, microseconds since 1970 UTC, from its raw features.

    Raises:
        RequestError: there is no time, or it is not a whole number.
    """
    time = request.get(TIME)
    if isinstance(time, int | np.integer) and not isinstance(time, bool) and abs(time) < 2**62:
        return int(time)
    expected, remedy = "microseconds since 1970-01-01 UTC, an integer", "Send the time of the request."
    raise RequestError(Problem(f"request.{TIME}", expected, shortened(time), remedy))


def before(columns: Columns, group: Group, now_us: int) -> tuple[Columns, FloatArray]:
    """A history as of the request: the newest rows strictly before it, and their ages in days, as in training.

    Args:
        columns: checked by `check_columns`, with the rows' times in microseconds since 1970 UTC, oldest first.
        group: of a log.
        now_us: the request's time.

    Returns:
        (the columns of the features, [T] float32).

    Raises:
        RequestError: a time is missing or no whole number, or times descend.
    """
    where = f"{group.where}.{TIME}"
    times, missing = _raw_ints(columns[TIME], where)
    times = times.astype(np.int64)
    gap = missing is not None and bool(missing.any())
    if gap or np.any(times[1:] < times[:-1]):
        got = "a missing one" if gap else "times that descend"
        raise RequestError(Problem(where, "the time of every event, oldest first", got, "Sort the events by time."))
    last = int(np.searchsorted(times, now_us, side="left"))
    first = max(last - (group.newest or last), 0)
    ages = age_days(now_us, times[first:last])
    return {name: column[first:last] for name, column in columns.items() if name != TIME}, ages


def _name_problems(columns: Mapping[Any, Any], group: Group) -> list[Problem]:
    absent = sorted(group.names - columns.keys())
    unknown = sorted(columns.keys() - group.names, key=str)
    expected = f"features of the bundle ({listed(group.names)})"
    problems = [
        Problem(group.where, expected, shortened(name), did_you_mean(str(name), absent or group.names, "Leave it out."))
        for name in unknown
    ]
    remedy = "Send it, with None (null) where the value is not known."
    return problems + [Problem(group.where, f"feature `{name}`", "no such name", remedy) for name in absent]


def _encode_ids(column: Column, table: str, *, space: IdSpace, where: str) -> Int64Array:
    if space.type == "string":
        return encode_strings(_raw_strings(column, where), space, table)
    values, missing = _raw_ints(column, where)
    return encode_ints(values, missing, space, table)


def _as_list(column: Column, kinds: str, *, expected: str, where: str) -> Sequence[Any]:
    """Python values of a column; numpy columns of other kinds (dates, truth values) are refused."""
    if not isinstance(column, np.ndarray):
        return column
    if column.dtype.kind not in kinds:
        raise RequestError(Problem(where, expected, f"an array of {column.dtype}", "Convert the column."))
    return column.tolist()


def _raw_ints(column: Column, where: str) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Integer ids as 64-bit values, and where there are none."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        return column.astype(np.int64 if column.dtype.kind == "i" else np.uint64, copy=False), None
    values = _as_list(column, "fO", expected="integer ids", where=where)
    kinds = set(map(type, values))
    if kinds <= {int, _NONE}:
        missing = np.fromiter((value is None for value in values), np.bool_, len(values)) if _NONE in kinds else None
        known = values if missing is None else [value or 0 for value in values]
        for dtype in (np.int64, np.uint64):
            with contextlib.suppress(OverflowError):
                return np.array(known, dtype=dtype), missing
    bits = [_int_bits(value, f"{where}[{place}]") for place, value in enumerate(values)]
    missing = np.fromiter((value is None for value in bits), np.bool_, len(bits))
    return np.array([value or 0 for value in bits], dtype=np.uint64), missing


def _int_bits(value: Any, where: str) -> int | None:
    """The 64-bit pattern of one integer id; None where it is missing (None, or NaN as float columns have it)."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    if isinstance(value, float | np.floating) and abs(value) <= _LARGEST_WHOLE_FLOAT and value == int(value):
        return int(value) % 2**64
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return int(value) % 2**64
    expected, remedy = "an integer from -2^63 to 2^64 - 1, or None", "Send the id as it was logged."
    raise RequestError(Problem(where, expected, shortened(value), remedy))


def _raw_strings(column: Column, where: str) -> list[str | None]:
    values = _as_list(column, "UTO", expected="strings", where=where)
    if not set(map(type, values)) <= {str, _NONE}:
        place, wrong = next((at, value) for at, value in enumerate(values) if not isinstance(value, str | None))
        remedy = "Send the id as it was logged."
        raise RequestError(Problem(f"{where}[{place}]", "a string, or None", shortened(wrong), remedy))
    try:
        "".join(value for value in values if value is not None).encode()
    except UnicodeEncodeError as error:
        got = shortened(error.object[error.start : error.end])
        raise RequestError(Problem(where, "Unicode text", f"half a surrogate pair, {got}", "Mend the text.")) from error
    return list(values)


def _raw_numbers(column: Column, where: str) -> NDArray[np.float64]:
    """Numbers as float64, NaN where there are none."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "fiu":
        return column.astype(np.float64, copy=False)
    values = _as_list(column, "O", expected="numbers", where=where)
    if not set(map(type, values)) <= {float, int, _NONE}:
        for place, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating | None):
                remedy = "Send a number, not text or a truth value."
                raise RequestError(Problem(f"{where}[{place}]", "a number, or None", shortened(value), remedy))
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise RequestError(Problem(where, "numbers within float64", str(error), "Send them as floats.")) from error
