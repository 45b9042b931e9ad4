"""The request store, open: small tables encoded in memory, events mapped, requests found by row group.

`docs/store.md` is the layout; `foundation/data/prepare.py` writes it and `foundation/data/reader.py` reads requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from eval.artifacts import MANIFEST_FILE, FileDigest, digests_of, fingerprint, verify_files
from foundation.data.batch import Float32Array, Int64Array
from foundation.data.columns import as_numpy, map_columns
from foundation.data.encode import matrices
from foundation.data.schema import USER, Feature, IdFeature, Schema
from foundation.data.sources import declared_tables
from foundation.data.verified import verify_once
from serving.errors import DataError, MismatchError, Problem

LAYOUT = 2
PAST_FILE = "past.arrow"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AGAIN = "Run `gemcut prepare` again."


class StoreManifest(BaseModel):
    """What a store says of itself.

    Attributes:
        layout: version of `docs/store.md`.
        content_digest: sha256 of the part of the schema that decides what a store holds, by `content_digest`.
        input_digest: sha256 of what all but the statistics was made from, by which a finished run is recognised.
        num_requests: requests.
        num_rows: candidates of all requests together.
        num_items: rows of `items.arrow`.
        num_users: rows of `users.arrow`.
        num_events: rows of each log.
        first_time: time of the first request, microseconds since 1970 UTC.
        last_time: time of the last request.
        statistics: digest of the declaration of each statistic, by `statistic_digests`.
        files: size and sha256 of every file by its path in the store.
        fingerprint: sha256 over the files' digests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: int
    content_digest: str
    input_digest: str
    num_requests: int
    num_rows: int
    num_items: int
    num_users: int
    num_events: dict[str, int]
    first_time: int
    last_time: int
    statistics: dict[str, str] = {}
    files: dict[str, FileDigest]
    fingerprint: str


class RowGroup(NamedTuple):
    """A piece of the requests: row group `group` of part `part`; its first request is at `first` in the store."""

    part: int
    group: int
    first: int


@dataclass(frozen=True, slots=True)
class Entities:
    """Items or users, encoded: ids [N, F] int64 and numbers [N, G] float32, a row an entity."""

    ids: Int64Array
    numbers: Float32Array


@dataclass(frozen=True, slots=True)
class Events:
    """One log, memory-mapped, sorted by user and time.

    Attributes:
        times: [E] int64, microseconds since 1970 UTC.
        items: [E] int32, rows of the items.
        starts: [U] int64, where each user's events start.
        ends: [U] int64, where they end.
        own: the raw features of the events themselves, in the schema's order.
    """

    times: Int64Array
    items: NDArray[np.int32]
    starts: Int64Array
    ends: Int64Array
    own: tuple[pa.Array, ...]


def content_digest(schema: Schema) -> str:
    """sha256 of what decides a store's content: columns, types, time units, surfaces.

    Vocabulary sizes, scales, weights and limits are left out: they are applied when the store is read.
    """
    tables = {
        table.name: [(column.name, column.source, column.kind, column.unit) for column in table.columns]
        for table in declared_tables(schema)
    }
    content = orjson.dumps([LAYOUT, tables, schema.surfaces], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()


def statistic_digests(schema: Schema) -> dict[str, str]:
    """sha256 of each statistic's declaration: what it counts and what its values are called."""
    rules = {rule.name: orjson.dumps(asdict(rule), option=orjson.OPT_SORT_KEYS) for rule in schema.statistic_rules()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in rules.items()}


def read_manifest(folder: Path) -> StoreManifest:
    """The manifest of a store.

    Raises:
        DataError: there is none, or it is not one.
        MismatchError: it is of another layout.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise DataError(Problem(str(folder), "a request store", f"no {MANIFEST_FILE}", "Run `gemcut prepare` first."))
    try:
        content = orjson.loads(path.read_bytes())
        layout = content.get("layout")
        if layout != LAYOUT:
            raise MismatchError(Problem(str(path), f"layout {LAYOUT}", f"layout {layout}", AGAIN))
        return StoreManifest.model_validate(content)
    except (orjson.JSONDecodeError, AttributeError, ValidationError) as error:
        raise DataError(Problem(str(path), "a store's manifest", str(error).splitlines()[0], AGAIN)) from error


def summarise(folder: Path, schema: Schema, *, input_digest: str) -> StoreManifest:
    """The manifest of a folder that holds every file of a store but the manifest."""
    files = digests_of(folder)
    times: list[Int64Array] = []
    num_rows = 0
    for name in sorted(files):
        if name.startswith("requests/"):
            table = pq.read_table(folder / name, columns=["time", "candidates"])
            times.append(as_numpy(table["time"]))
            num_rows += sum(len(piece.flatten()) for piece in table["candidates"].chunks)
    return StoreManifest(
        layout=LAYOUT,
        content_digest=content_digest(schema),
        input_digest=input_digest,
        num_requests=sum(len(part) for part in times),
        num_rows=num_rows,
        num_items=map_columns(folder / "items.arrow").num_rows,
        num_users=map_columns(folder / "users.arrow").num_rows,
        num_events={log: map_columns(folder / "events" / f"{log}.arrow").num_rows for log in schema.data.events},
        first_time=int(times[0][0]),
        last_time=int(times[-1][-1]),
        statistics=statistic_digests(schema),
        files=files,
        fingerprint=fingerprint(files),
    )


class Store:
    """An open store. Requests are known by position, 0 to `manifest.num_requests` - 1, in time order."""

    def __init__(self, folder: Path, schema: Schema, manifest: StoreManifest) -> None:
        self.folder, self.schema, self.manifest = folder, schema, manifest
        self.parts = tuple(folder / name for name in sorted(manifest.files) if name.startswith("requests/"))
        self.statistics_parts = tuple(folder / "statistics" / part.name for part in self.parts)
        self.row_groups = _row_groups(self.parts)
        items, users = map_columns(folder / "items.arrow"), map_columns(folder / "users.arrow")
        user_features = schema.data.users.features if schema.data.users else ()
        self.items = _encoded(items, schema.item_features(), schema)
        self.users = _encoded(users, (IdFeature(name=USER), *user_features), schema)
        self.events = {
            log: _events(map_columns(folder / "events" / f"{log}.arrow"), users, log, schema=schema)
            for log in schema.data.events
        }

    @classmethod
    def open(cls, folder: Path, schema: Schema, *, verify: bool = False) -> Store:
        """Open a store, after checking that it belongs to the schema and that its files are there.

        Args:
            folder: the store.
            schema: the project's data sections.
            verify: compare every file's sha256, reading those that `verify_once` does not remember; without it names
                and sizes only.

        Raises:
            DataError: there is no store, or a file of it is damaged.
            MismatchError: other layout, other schema, or files that are not those of the manifest. The store may
                have statistics that the schema does not declare.
        """
        manifest = read_manifest(folder)
        if manifest.content_digest != content_digest(schema):
            expected = "a store made with this project's tables, columns, types and surfaces"
            raise MismatchError(Problem(str(folder), expected, "one made with others", AGAIN))
        for name, digest in statistic_digests(schema).items():
            if manifest.statistics.get(name) != digest:
                got = "one declared otherwise" if name in manifest.statistics else "none"
                raise MismatchError(Problem(str(folder), f"statistic `{name}` as this project declares it", got, AGAIN))
        if verify:
            verify_once(folder, manifest.files)
        else:
            verify_files(folder, manifest.files, contents=False)
        with whole_file(folder):
            return cls(folder, schema, manifest)

    @property
    def fingerprint(self) -> str:
        """sha256 that stands for the whole content; it goes into everything that is made from the store."""
        return self.manifest.fingerprint

    @property
    def times(self) -> Int64Array:
        """[R] int64, ascending: when each request happened, microseconds since 1970 UTC."""
        return self._times_and_surfaces[0]

    @property
    def surfaces(self) -> NDArray[np.int32]:
        """[R] int32: place of each request's surface in `schema.surfaces`."""
        return self._times_and_surfaces[1]

    @cached_property
    def users_of_requests(self) -> NDArray[np.int32]:
        """[R] int32: row of each request's user."""
        return as_numpy(self._read("user")["user"])

    @cached_property
    def candidate_counts(self) -> Int64Array:
        """[R] int64: candidates of each request."""
        lists = self._read("candidates")["candidates"]
        return np.concatenate([np.diff(as_numpy(piece.offsets)) for piece in lists.chunks]).astype(np.int64)

    @cached_property
    def past(self) -> dict[str, Int64Array]:
        """Running sums of what each request could know, [R] int64 by column of `past.arrow`, memory-mapped."""
        with whole_file(self.folder / PAST_FILE):
            table = map_columns(self.folder / PAST_FILE)
            return {name: table[name].to_numpy() for name in table.schema.names}

    @cached_property
    def _times_and_surfaces(self) -> tuple[Int64Array, NDArray[np.int32]]:
        table = self._read("time", "surface")
        return as_numpy(table["time"]), as_numpy(table["surface"])

    def _read(self, *columns: str) -> pa.Table:
        pieces: list[pa.Table] = []
        for part in self.parts:
            with whole_file(part), pq.ParquetFile(part) as file:
                pieces.append(file.read(columns=list(columns)))
        return pa.concat_tables(pieces)

    def select(
        self, surfaces: tuple[str, ...] | None = None, *, start: int | None = None, end: int | None = None
    ) -> Int64Array:
        """Positions of requests on some surfaces in a period, ascending.

        Args:
            surfaces: names; all if absent.
            start: first microsecond since 1970 UTC; from the first request if absent.
            end: first microsecond after; to the last request if absent.

        Returns:
            [N] int64.
        """
        first = 0 if start is None else int(np.searchsorted(self.times, start, side="left"))
        last = len(self.times) if end is None else int(np.searchsorted(self.times, end, side="left"))
        positions = np.arange(first, max(first, last), dtype=np.int64)
        if surfaces is None:
            return positions
        unknown = [name for name in surfaces if name not in self.schema.surfaces]
        if unknown:
            expected = f"surfaces of {', '.join(self.schema.surfaces)}"
            raise DataError(Problem(str(self.folder), expected, unknown[0], "Correct the name."))
        wanted = [self.schema.surfaces.index(name) for name in surfaces]
        return positions[np.isin(self.surfaces[positions], wanted)]


@contextmanager
def whole_file(path: Path) -> Iterator[None]:
    """Turn what Arrow says of a damaged file of the store into an error that names it."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        got = str(error).splitlines()[0]
        raise DataError(Problem(str(path), "whole files, as `gemcut prepare` wrote them", got, AGAIN)) from error


def microseconds(moment: datetime) -> int:
    """Microseconds since 1970 UTC; no time zone means UTC.

    Example:
        >>> microseconds(datetime(1970, 1, 2))
        86400000000
    """
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    passed = moment - EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def moment_of(time_us: int) -> str:
    """A time of `microseconds` as a project file and a command line have it, in UTC.

    Example:
        >>> moment_of(86_400_000_000)
        '1970-01-02T00:00:00'
    """
    return (EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None).isoformat()


def _row_groups(parts: tuple[Path, ...]) -> tuple[RowGroup, ...]:
    found: list[RowGroup] = []
    first = 0
    for part, path in enumerate(parts):
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                found.append(RowGroup(part, group, first))
                first += file.metadata.row_group(group).num_rows
    return tuple(found)


def _encoded(table: pa.RecordBatch, features: tuple[Feature, ...], schema: Schema) -> Entities:
    """The entity itself, whose raw id is the first column, and its features."""
    raw = {feature.name: table[f"feature.{feature.name}"] for feature in features[1:]}
    ids, numbers = matrices({features[0].name: table.column(0)} | raw, features, schema, num_rows=table.num_rows)
    return Entities(ids, numbers)


def _events(table: pa.RecordBatch, users: pa.RecordBatch, log: str, *, schema: Schema) -> Events:
    return Events(
        times=as_numpy(table["time"]),
        items=as_numpy(table["item"]),
        starts=as_numpy(users[f"{log}_start"]),
        ends=as_numpy(users[f"{log}_end"]),
        own=tuple(table[f"feature.{feature.name}"] for feature in schema.data.events[log].features),
    )
