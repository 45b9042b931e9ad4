"""A user's tables as SQL: which files, which columns, in which normal form, and what a row may not hold.

`read_sources` looks at names, footers and column types only, so it takes seconds whatever the size of the logs.
`Source.select` is the projection that everything else reads.
"""

from __future__ import annotations

import difflib
import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from foundation.data.schema import Feature, IdFeature, Schema, TimeUnit
from foundation.data.sql import identifier, quote
from serving.errors import DataError, Problem

Kind = Literal["int", "string", "key", "number", "label", "time"]

LATEST_US = 2**53  # microseconds, year 2255: exact as float64 too; a wrong unit lands beyond it
NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
EXPECTED = {
    "int": "an integer column",
    "string": "a string column",
    "key": "an integer or string column",
    "number": "a numeric column",
    "label": "a column of 0, 1 and null",
    "time": "a timestamp column without `unit`, or integers with one",
}


@dataclass(frozen=True, slots=True)
class Check:
    """What no row may be.

    Attributes:
        broken: SQL condition over the file's columns, true where the row is wrong.
        expected: what would have been right.
        remedy: what to do about it.
    """

    broken: str
    expected: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a source: its name in the projection, where it comes from, and its normal form.

    Attributes:
        name: "request", "user", "time", "surface", "item", "row_id", or "context.NAME", "candidate.NAME",
            "label.NAME", "feature.NAME".
        source: the column of the files.
        where: the field of the project file that names it.
        kind: what it holds.
        unit: of a time: what integers count.
        expression: SQL of the normal form. Integers are BIGINT (uint64 by its bit pattern), strings VARCHAR, numbers
            DOUBLE, labels TINYINT, times BIGINT microseconds since 1970 UTC, surfaces INTEGER places in the list.
        checks: what its rows may not be.
        types: what the files hold, one a file.
    """

    name: str
    source: str
    where: str
    kind: Kind
    unit: TimeUnit | None = None
    expression: str = ""
    checks: tuple[Check, ...] = ()
    types: tuple[pa.DataType, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """One table that the user brings.

    Attributes:
        name: "impressions", "items", "users" or "events.NAME".
        files: parquet files, sorted by path.
        columns: what is read of it.
        num_rows: rows in all files together, by their footers.
        limit: read only this many, the first ones; all if absent.
    """

    name: str
    files: tuple[Path, ...]
    columns: tuple[Column, ...]
    num_rows: int
    limit: int | None = None

    @property
    def table(self) -> str:
        """The files as a SQL table with their own columns, and `file_index`, `file_row_number`: the source order."""
        files = ", ".join(quote(str(file)) for file in self.files)
        rows = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
        return f"(SELECT *, file_index, file_row_number FROM {rows} LIMIT {self.limit})" if self.limit else rows

    def select(self, names: Sequence[str] | None = None, *, order: bool = False) -> str:
        """SQL of the projection, all columns or those named; with `order` also `file_index` and `file_row_number`."""
        wanted = [column for column in self.columns if names is None or column.name in names]
        terms = [f"{column.expression} AS {identifier(column.name)}" for column in wanted]
        terms += ["file_index", "file_row_number"] if order else []
        return f"SELECT {', '.join(terms)} FROM {self.table}"

    def column(self, name: str) -> Column:
        """The column of this name in the projection."""
        return next(column for column in self.columns if column.name == name)

    def named(self, prefix: str) -> tuple[str, ...]:
        """Names of the columns that begin with "context.", "candidate.", "label." or "feature.", in order."""
        return tuple(column.name for column in self.columns if column.name.startswith(prefix))


class Table(NamedTuple):
    """A table as it is declared, before its files are seen: columns have no expression and no checks yet."""

    name: str
    pattern: str
    columns: list[Column]


def read_sources(schema: Schema, root: Path) -> tuple[Source, ...]:
    """Every table of the project: impressions, events by log, items, users.

    Args:
        schema: the project's data sections.
        root: folder that the paths are relative to.

    Raises:
        DataError: with every missing or unreadable file, empty table, missing column and column of a wrong type.
    """
    sources, problems = find_sources(schema, root)
    if problems:
        raise DataError(problems)
    return sources


def find_sources(schema: Schema, root: Path) -> tuple[tuple[Source, ...], tuple[Problem, ...]]:
    """`read_sources` for who wants to look further: the sound columns of the sound tables, and what is wrong."""
    problems: list[Problem] = []
    sources: list[Source] = []
    for table in declared_tables(schema):
        where = f"data.{table.name}.files"
        files, schemas, num_rows = _footers(where, root, table.pattern, problems=problems)
        if schemas:
            typed = [_typed(column, files, schemas, schema=schema, problems=problems) for column in table.columns]
            sound = tuple(column for column in typed if column.expression)
            sources.append(Source(table.name, tuple(files), sound, num_rows))
    return tuple(sources), tuple(problems)


def declared_tables(schema: Schema) -> Iterator[Table]:
    """Every table that the schema declares: impressions, events by log, items, users."""
    data, user, item = schema.data, schema.tables["user"].type, schema.tables["item"].type
    shown, where = data.impressions, "data.impressions"
    columns = [
        Column("request", shown.request, f"{where}.request", "key"),
        Column("user", shown.user, f"{where}.user", user),
        Column("time", shown.time, f"{where}.time", "time", shown.unit),
        Column("surface", shown.surface, f"{where}.surface", "string"),
        Column("item", shown.item, f"{where}.item", item),
    ]
    columns += [Column("row_id", shown.row, f"{where}.row", "int")] if shown.row else []
    columns += _features(schema, shown.context, f"{where}.context", prefix="context.")
    columns += _features(schema, shown.candidate, f"{where}.candidate", prefix="candidate.")
    for name, objective in schema.objectives.items():
        columns.append(Column(f"label.{name}", objective.column or name, f"objectives.{name}.column", "label"))
    yield Table("impressions", shown.files, columns)
    for name, log in data.events.items():
        where = f"data.events.{name}"
        columns = [
            Column("user", log.user, f"{where}.user", user),
            Column("time", log.time, f"{where}.time", "time", log.unit),
            Column("item", log.item, f"{where}.item", item),
            *_features(schema, log.features, f"{where}.features", prefix="feature."),
        ]
        yield Table(f"events.{name}", log.files, columns)
    if data.items:
        features = _features(schema, data.items.features, "data.items.features", prefix="feature.")
        columns = [Column("item", data.items.item, "data.items.item", item), *features]
        yield Table("items", data.items.files, columns)
    if data.users:
        features = _features(schema, data.users.features, "data.users.features", prefix="feature.")
        columns = [Column("user", data.users.user, "data.users.user", user), *features]
        yield Table("users", data.users.files, columns)


def _features(schema: Schema, features: tuple[Feature, ...], where: str, *, prefix: str) -> list[Column]:
    return [
        Column(
            prefix + feature.name,
            feature.source,
            f"{where}.{feature.name}",
            schema.id_space(feature.table_name).type if isinstance(feature, IdFeature) else "number",
        )
        for feature in features
    ]


def _footers(
    where: str, root: Path, pattern: str, *, problems: list[Problem]
) -> tuple[list[Path], list[pa.Schema], int]:
    """Files of a pattern, their schemas, and the number of rows; what is wrong is added to `problems`."""
    files = [root / file for file in sorted(glob.glob(pattern, root_dir=root, recursive=True))]  # noqa: PTH207 - absolute too
    if not files:
        remedy = "Correct the path; it is relative to the project file."
        problems.append(Problem(where, "a parquet file or a pattern of some", f"no file fits {pattern!r}", remedy))
    schemas, num_rows = [], 0
    for file in files:
        try:
            with pq.ParquetFile(file) as parquet:
                schemas.append(parquet.schema_arrow)
                num_rows += parquet.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            got = str(error).splitlines()[0]
            problems.append(Problem(str(file), "a whole parquet file", got, "Write the file again."))
    if files and len(schemas) == len(files) and not num_rows:
        problems.append(Problem(f"{where}: {pattern}", "at least one row", "none", "Check how the files were made."))
    return files, schemas if len(schemas) == len(files) else [], num_rows


def _typed(
    column: Column, files: list[Path], schemas: list[pa.Schema], *, schema: Schema, problems: list[Problem]
) -> Column:
    """The column with its normal form and checks, by the types it has in the files."""
    types: list[pa.DataType] = []
    for file, names in zip(files, schemas, strict=True):
        if column.source not in names.names:
            close = difflib.get_close_matches(column.source, names.names, n=1)
            remedy = f"Did you mean {close[0]!r}?" if close else f"Columns are {', '.join(names.names)}."
            problems.append(Problem(f"{file}: {column.where}", f"a column {column.source!r}", "none", remedy))
            return column
        found = names.field(column.source).type
        problem = _type_problem(column, found)
        if problem is None and types and column.kind == "key" and _is_string(found) != _is_string(types[0]):
            problem = (f"type {types[0]}, as in {files[0].name}", "Write both with one type.")
        if problem:
            where = f"{file}: column {column.source!r} ({column.where})"
            problems.append(Problem(where, problem[0], f"type {found}", problem[1]))
            return column
        types.append(found)
    return _normal_form(column, types, schema.surfaces)


def _type_problem(column: Column, found: pa.DataType) -> tuple[str, str] | None:
    """What was expected and what to do, if a column of this kind can not have this type."""
    types = pa.types
    number = types.is_integer(found) or types.is_floating(found) or types.is_decimal(found) or types.is_boolean(found)
    fits = {
        "int": types.is_integer(found),
        "string": _is_string(found),
        "key": types.is_integer(found) or _is_string(found),
        "number": number,
        "label": number and not types.is_decimal(found),
        "time": types.is_timestamp(found) if column.unit is None else types.is_integer(found),
    }
    if types.is_null(found) or fits[column.kind]:
        return None
    remedy = "Cast the column, or change its declaration."
    if column.kind == "time" and types.is_integer(found):
        remedy = "State its unit in the project file: `unit: s`, `ms`, `us` or `ns`."
    elif column.kind == "time" and types.is_timestamp(found):
        remedy = "Remove `unit` from the project file: a timestamp has its own."
    elif column.kind == "time" and types.is_date(found):
        remedy = "Give the time of day too: of two requests on one day nobody could say which came first."
    elif column.kind in ("int", "key") and types.is_floating(found):
        remedy = "Cast it to int64 (a null makes some libraries write integers as floats), or declare another type."
    elif column.kind == "int" and _is_string(found):
        remedy = "Declare `type: string` for its table under `tables`, or cast the column."
    return EXPECTED[column.kind], remedy


def _is_string(found: pa.DataType) -> bool:
    found = found.value_type if pa.types.is_dictionary(found) else found
    return pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)


def _normal_form(column: Column, types: list[pa.DataType], surfaces: tuple[str, ...]) -> Column:
    """The column with its expression and checks."""
    raw = identifier(column.source)
    checks: list[Check] = []
    if "." not in column.name:
        checks.append(Check(f"{raw} IS NULL", "no null", "Drop these rows, or fill the column."))
    if column.name == "surface":
        listed = f"[{', '.join(quote(surface) for surface in surfaces)}]"
        expression = f"CAST(list_position({listed}, CAST({raw} AS VARCHAR)) - 1 AS INTEGER)"
        broken = f"{raw} IS NOT NULL AND list_position({listed}, CAST({raw} AS VARCHAR)) IS NULL"
        checks.append(Check(broken, "a surface listed in `surfaces`", "List it there, or drop these rows."))
    elif column.kind == "string" or (column.kind == "key" and any(_is_string(found) for found in types)):
        expression = f"CAST({raw} AS VARCHAR)"
    elif column.kind in ("int", "key"):
        expression = f"CAST({raw} AS BIGINT)"
        if pa.uint64() in types:
            folded = f"CAST(CAST({raw} AS HUGEINT) - 18446744073709551616 AS BIGINT)"
            expression = f"CASE WHEN {raw} > 9223372036854775807 THEN {folded} ELSE {expression} END"
    elif column.kind == "number":
        expression = f"CAST({raw} AS DOUBLE)"
        broken = f"NOT isfinite(CAST({raw} AS DOUBLE))"
        checks.append(Check(broken, "a finite number or null", "Write null where the number is not known."))
    elif column.kind == "label":
        value = f"CAST({raw} AS DOUBLE)"
        expression = f"CASE {value} WHEN 0 THEN 0::TINYINT WHEN 1 THEN 1::TINYINT END"
        broken = f"{value} NOT IN (0, 1) AND NOT isnan({value})"
        checks.append(Check(broken, "0, 1, or null where it is not known", "Correct the label column."))
    else:
        exact = _microseconds(raw, types, column.unit)
        expression = f"CAST({exact} AS BIGINT)"
        broken = f"NOT ({exact} >= 0 AND {exact} < {LATEST_US})"
        expected = "a time from 1970 to 2255" + (f" with unit {column.unit}" if column.unit else "")
        checks.append(Check(broken, expected, "Correct `unit`, or drop these rows."))
    return replace(column, expression=expression, checks=tuple(checks), types=tuple(types))


def _microseconds(raw: str, types: list[pa.DataType], unit: TimeUnit | None) -> str:
    """SQL of whole microseconds, rounded down."""
    if all(pa.types.is_integer(found) or pa.types.is_null(found) for found in types):
        nanoseconds = NANOSECONDS[unit or "us"]
        return f"(CAST({raw} AS HUGEINT) * {nanoseconds} // 1000)"
    if pa.timestamp("ns") in types or any(pa.types.is_timestamp(found) and found.unit == "ns" for found in types):
        return f"(epoch_ns({raw}) // 1000)"
    return f"epoch_us({raw})"
