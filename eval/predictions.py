"""The table that every evaluation reads: what a model said of each row, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from eval.artifacts import write_file
from serving.errors import DataError, MismatchError, Problem

KEYS = {"row_id": np.int64, "request": np.int64, "user": np.int64, "time": np.int64, "surface": np.int32}
HEADER = b"gemcut.predictions"
FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Scored rows of one model.

    Attributes:
        row_id: [N] int64, unique.
        request: [N] int64, position of the row's request in the store.
        user: [N] int64, the user's row in the store.
        time: [N] int64, microseconds since 1970-01-01 UTC.
        surface: [N] int32, index into `surfaces`.
        probabilities: by objective, [N] float64 in [0, 1]; NaN where the model has no head.
        labels: by objective, [N] float64: 0, 1, or NaN where not known.
        surfaces: names of the project's surfaces.
        model_digest: sha256 of the model that scored: a checkpoint, a student or a bundle.
        data_fingerprint: fingerprint of the request store.
    """

    row_id: NDArray[np.int64]
    request: NDArray[np.int64]
    user: NDArray[np.int64]
    time: NDArray[np.int64]
    surface: NDArray[np.int32]
    probabilities: Mapping[str, NDArray[np.float64]]
    labels: Mapping[str, NDArray[np.float64]]
    surfaces: tuple[str, ...]
    model_digest: str
    data_fingerprint: str

    def __post_init__(self) -> None:
        for name, dtype in KEYS.items():
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        for name in ("probabilities", "labels"):
            columns = {key: np.asarray(values, dtype=np.float64) for key, values in getattr(self, name).items()}
            object.__setattr__(self, name, columns)
        object.__setattr__(self, "surfaces", tuple(self.surfaces))
        if problems := _problems(self):
            raise DataError(problems)

    @property
    def num_rows(self) -> int:
        """Rows in the table."""
        return len(self.row_id)

    @property
    def objectives(self) -> tuple[str, ...]:
        """Objectives that the model predicts."""
        return tuple(self.probabilities)

    def take(self, rows: NDArray[Any]) -> Self:
        """The table of some rows, by position or by mask."""
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in KEYS}
        for group in ("probabilities", "labels"):
            arrays[group] = {name: values[rows] for name, values in getattr(self, group).items()}
        return replace(self, **arrays)

    def on_surface(self, name: str) -> Self:
        """The table of one surface's rows."""
        return self.take(self.surface == self.surfaces.index(name))

    def scored(self, objective: str) -> Self:
        """The table of the rows whose probability and label are both known, in order of row id."""
        known = ~np.isnan(self.probabilities[objective]) & ~np.isnan(self.labels[objective])
        rows = np.flatnonzero(known)
        return self.take(rows[np.argsort(self.row_id[rows], kind="stable")])


def save_predictions(predictions: Predictions, path: Path) -> None:
    """Write one parquet file, whole or not at all; what made it stands in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: getattr(predictions, name) for name in KEYS}
    for group in ("probabilities", "labels"):
        columns |= {f"{group}.{name}": values for name, values in getattr(predictions, group).items()}
    header = {
        "format": FORMAT,
        "surfaces": predictions.surfaces,
        "model_digest": predictions.model_digest,
        "data_fingerprint": predictions.data_fingerprint,
    }
    table = pa.table(columns).replace_schema_metadata({HEADER: orjson.dumps(header)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_file(path, sink.getvalue().to_pybytes())


def load_predictions(
    path: Path, *, model_digest: str | None = None, data_fingerprint: str | None = None
) -> Predictions:
    """Read what `save_predictions` wrote.

    Args:
        path: the file.
        model_digest: the model that must have made it; any if absent.
        data_fingerprint: the store that it must have been made from; any if absent.

    Raises:
        DataError: no such file, or it is truncated, or not a table of predictions.
        MismatchError: another model or another store made it.
    """
    predictions = Predictions(**_read(path))
    wanted = {"model_digest": model_digest, "data_fingerprint": data_fingerprint}
    problems = [
        Problem(f"{path}: {name}", f"{digest[:12]}…", f"{getattr(predictions, name)[:12]}…", "Score the rows again.")
        for name, digest in wanted.items()
        if digest is not None and digest != getattr(predictions, name)
    ]
    if problems:
        raise MismatchError(problems)
    return predictions


def _read(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy = "Score the rows again."
    try:
        table = pq.read_table(path)
        header = orjson.loads((table.schema.metadata or {})[HEADER])
        if header["format"] != FORMAT:
            raise MismatchError(Problem(f"{path}: format", str(FORMAT), str(header["format"]), remedy))
        content: dict[str, Any] = {name: table.column(name).to_numpy() for name in KEYS}
        content |= {name: header[name] for name in ("surfaces", "model_digest", "data_fingerprint")}
        content |= {"probabilities": {}, "labels": {}}
        for name in sorted(set(table.column_names) - KEYS.keys()):
            group, _, objective = name.partition(".")
            content[group][objective] = table.column(name).to_numpy()
    except FileNotFoundError as error:
        raise DataError(Problem(str(path), "a table of predictions", "no such file", remedy)) from error
    except (OSError, pa.ArrowException, KeyError, orjson.JSONDecodeError) as error:
        got = "a parquet file of something else" if isinstance(error, KeyError) else f"{error}"
        raise DataError(Problem(str(path), "a table of predictions", got, remedy)) from error
    return content


def _problems(table: Predictions) -> list[Problem]:
    remedy = "Mend what made the table."
    lengths = {field.name: getattr(table, field.name) for field in fields(table) if field.name in KEYS}
    lengths |= {f"probabilities.{name}": values for name, values in table.probabilities.items()}
    lengths |= {f"labels.{name}": values for name, values in table.labels.items()}
    problems = [
        Problem(f"predictions: {name}", f"shape ({len(table.row_id)},)", f"{values.shape}", remedy)
        for name, values in lengths.items()
        if values.shape != table.row_id.shape
    ]
    if len(np.unique(table.row_id)) != len(table.row_id):
        got = f"{len(table.row_id) - len(np.unique(table.row_id))} repeated ones"
        problems.append(Problem("predictions: row_id", "unique row ids", got, remedy))
    if table.num_rows and not (table.surface.min() >= 0 and table.surface.max() < len(table.surfaces)):
        got = f"{table.surface.min()} to {table.surface.max()}"
        problems.append(Problem("predictions: surface", f"0 to {len(table.surfaces) - 1}", got, remedy))
    if missing := sorted(table.probabilities.keys() - table.labels.keys()):
        problems.append(Problem("predictions: labels", "labels of every objective", f"none of {missing}", remedy))
    for name, values in table.probabilities.items():
        if np.any((values < 0) | (values > 1)):
            got = f"{np.nanmin(values)} to {np.nanmax(values)}"
            problems.append(Problem(f"predictions: probabilities.{name}", "0 to 1 or NaN", got, remedy))
    for name, values in table.labels.items():
        wrong = values[~np.isnan(values) & (values != 0) & (values != 1)]
        if len(wrong):
            problems.append(Problem(f"predictions: labels.{name}", "0, 1 or NaN", f"{wrong[0]}", remedy))
    return problems
