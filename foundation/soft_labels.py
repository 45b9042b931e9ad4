"""The soft-label store: a teacher's scores by row id, stamped with who scored what; see `docs/soft-labels.md`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from eval.artifacts import FileDigest, digests_of, fingerprint, verify_files, write_file, write_json
from serving.errors import MismatchError, Problem

MANIFEST_FILE = "manifest.json"
TRAIN_REMEDY = "Run `gemcut train`; after a change of the project file or of the store, `gemcut train --fresh`."
NOTHING_LEARNED = int(np.iinfo(np.int64).min)


class Teacher(BaseModel):
    """Which model scored.

    Attributes:
        run: digest of the training run: its project, data and seed.
        checkpoint: digest of the checkpoint that scored; None where the run scored each row before it learned from it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    checkpoint: str | None = None


class SoftLabelManifest(BaseModel):
    """Who scored which data.

    Attributes:
        format: of this manifest and the parts.
        teacher: who scored.
        data_fingerprint: of the request store.
        schema_digest: of the schema the teacher read it with.
        objectives: columns, in order.
        num_rows: rows scored.
        files: by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    teacher: Teacher
    data_fingerprint: str
    schema_digest: str
    objectives: tuple[str, ...]
    num_rows: int
    files: dict[str, FileDigest]


@dataclass(frozen=True, slots=True)
class SoftLabels:
    """Scores in memory, ready to be joined to any rows.

    Attributes:
        manifest: of the store they came from.
        row_ids: [N] int64, ascending, each once.
        cutoffs_us: [N] int64; request time of the newest row that the teacher had learned from, `NOTHING_LEARNED` if
            none.
        logits: [N, K] float32; NaN where there is no head.
    """

    manifest: SoftLabelManifest
    row_ids: NDArray[np.int64]
    cutoffs_us: NDArray[np.int64]
    logits: NDArray[np.float32]

    @property
    def digest(self) -> str:
        """sha256 over the store's files."""
        return fingerprint(self.manifest.files)

    def of_rows(self, row_ids: NDArray[np.int64], times_us: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits of the given rows, NaN where the teacher did not score one.

        Args:
            row_ids: [M] int64, any order.
            times_us: [M] int64, each row's request time.

        Returns:
            [M, K] float32.

        Raises:
            MismatchError: a row is older than what its teacher had learned from, so that its label may have leaked into
                its score.
        """
        if len(self.row_ids) == 0:
            return np.full((len(row_ids), self.logits.shape[1]), np.nan, dtype=np.float32)
        found = np.searchsorted(self.row_ids, row_ids).clip(max=len(self.row_ids) - 1)
        known = self.row_ids[found] == row_ids
        leaked = known & (self.cutoffs_us[found] > times_us)
        if leaked.any():
            row = int(row_ids[leaked][0])
            raise MismatchError(
                Problem(
                    where=f"soft labels of run {self.manifest.teacher.run[:12]}, row {row}",
                    expected=f"a teacher that had learned from nothing newer than the row, {times_us[leaked][0]} us",
                    got=f"a cutoff of {self.cutoffs_us[found][leaked][0]} us ({int(leaked.sum())} rows alike)",
                    remedy="Use the progressive scores of the training run, or a checkpoint from before these rows.",
                )
            )
        logits = self.logits[found]
        return np.where(known[:, None], logits, np.float32(np.nan))


class SoftLabelWriter:
    """Collects scored rows and writes them in parts; `publish` makes them a store."""

    def __init__(self, folder: Path, objectives: tuple[str, ...], *, rank: int = 0) -> None:
        self.folder = folder
        self.objectives = objectives
        self.rank = rank
        self.num_parts = 0
        self._rows: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, row_ids: NDArray[np.int64], cutoffs_us: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        """Take [M] row ids, [M] cutoffs and [M, K] logits (NaN where there is no head)."""
        self._rows.append((row_ids, cutoffs_us, logits))

    def flush(self) -> None:
        """Write what was added since the last flush as the next part, whole or not at all."""
        if not self._rows:
            return
        row_ids, cutoffs, logits = (np.concatenate(column) for column in zip(*self._rows, strict=True))
        columns: dict[str, pa.Array] = {"row_id": pa.array(row_ids), "cutoff": pa.array(cutoffs)}
        for place, objective in enumerate(self.objectives):
            columns[f"logit.{objective}"] = pa.array(logits[:, place], from_pandas=True)
        content = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), content, compression="zstd")
        write_file(self.folder / part_name(self.rank, self.num_parts), content.getvalue().to_pybytes())
        self.num_parts += 1
        self._rows.clear()

    def rewind(self, num_parts: int, *, first: int = 0) -> None:
        """Go back to parts `first` to `num_parts`; others, of any rank, are of steps that will be made again.

        Raises:
            MismatchError: one of these parts of the first rank is gone.
        """
        self.num_parts = num_parts
        self._rows.clear()
        if self.rank != 0:
            return
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
        for path in self.folder.glob("*part*"):
            number = path.stem.rpartition("-")[2]
            if not (path.match("part-*.parquet") and first <= int(number) < num_parts):
                path.unlink()
        kept = (self.folder / part_name(0, number) for number in range(first, num_parts))
        remedy = "Start again with `gemcut train --fresh`."
        if gone := [
            Problem(str(path), "scores of the steps so far", "no file", remedy) for path in kept if not path.is_file()
        ]:
            raise MismatchError(gone)

    def publish(self, *, teacher: Teacher, data_fingerprint: str, schema_digest: str) -> None:
        """Write the last part and the manifest, which makes the folder a store."""
        self.flush()
        files = digests_of(self.folder, exclude=(MANIFEST_FILE,))
        num_rows = sum(pq.read_metadata(self.folder / name).num_rows for name in files)
        manifest = SoftLabelManifest(
            teacher=teacher,
            data_fingerprint=data_fingerprint,
            schema_digest=schema_digest,
            objectives=self.objectives,
            num_rows=num_rows,
            files=files,
        )
        write_json(self.folder / MANIFEST_FILE, manifest.model_dump(mode="json"))


def sort_parts(before: Path, after: Path, *, num_before: int, num_parts: int) -> None:
    """Put the parts of a run on their side of a cut that may have moved, and drop those of steps to be made again.

    Both folders count their parts together. A folder whose parts change is no store until it is published again.

    Args:
        before: folder of parts 0 to `num_before`.
        after: folder of parts `num_before` to `num_parts`.
    """
    for folder, other in ((before, after), (after, before)):
        for path in sorted(folder.glob("part-*.parquet")):
            number = int(path.stem.rpartition("-")[2])
            if number < num_parts and (number < num_before) == (folder == before):
                continue
            for changed in (folder, other):
                (changed / MANIFEST_FILE).unlink(missing_ok=True)
            if number < num_parts:
                other.mkdir(parents=True, exist_ok=True)
                path.replace(other / path.name)
            else:
                path.unlink()


def restamp_soft_labels(folder: Path, *, teacher: Teacher, data_fingerprint: str, schema_digest: str) -> None:
    """Say of a store that it is of other data too: of a log that begins with all that its teacher has read."""
    if not (folder / MANIFEST_FILE).is_file():
        return
    stamps = {"teacher": teacher, "data_fingerprint": data_fingerprint, "schema_digest": schema_digest}
    manifest = _read_manifest(folder, TRAIN_REMEDY)
    changed = manifest.model_copy(update=stamps)
    if changed != manifest:
        write_json(folder / MANIFEST_FILE, changed.model_dump(mode="json"))


def part_name(rank: int, number: int) -> str:
    """File name of a rank's part."""
    return f"part-{rank:04d}-{number:05d}.parquet"


def check_soft_labels(
    folder: Path,
    *,
    data_fingerprint: str,
    schema_digest: str,
    run: str | None = None,
    checkpoint: str | None = None,
    remedy: str = TRAIN_REMEDY,
) -> SoftLabelManifest:
    """The manifest of a store whose files are there; one of other data, schema or teacher is refused.

    Args:
        folder: the store.
        data_fingerprint: of the request store that it must be of.
        schema_digest: of the schema that it must be of.
        run: of the teacher that must have made it; any if absent.
        checkpoint: digest of the one that must have scored; any, or none, if absent.
        remedy: which command writes this store.

    Raises:
        MismatchError: with every difference.
    """
    manifest = _read_manifest(folder, remedy)
    expected = {"data_fingerprint": data_fingerprint, "schema_digest": schema_digest}
    found = {name: str(getattr(manifest, name)) for name in expected}
    for name, wanted in {"run": run, "checkpoint": checkpoint}.items():
        if wanted is not None:
            expected[f"teacher.{name}"], found[f"teacher.{name}"] = wanted, str(getattr(manifest.teacher, name))
    problems = [
        Problem(
            where=f"{folder / MANIFEST_FILE}: {name}",
            expected=value[:12],
            got=found[name][:12],
            remedy=f"They belong to other data or another teacher. {remedy}",
        )
        for name, value in expected.items()
        if found[name] != value
    ]
    if problems:
        raise MismatchError(problems)
    verify_files(folder, manifest.files, contents=False)
    return manifest


def read_soft_labels(
    folder: Path,
    *,
    data_fingerprint: str,
    schema_digest: str,
    run: str | None = None,
    checkpoint: str | None = None,
    remedy: str = TRAIN_REMEDY,
) -> SoftLabels:
    """Read a store that `check_soft_labels` passes and whose files are the ones that were written.

    Raises:
        MismatchError: with every difference.
    """
    manifest = check_soft_labels(
        folder,
        data_fingerprint=data_fingerprint,
        schema_digest=schema_digest,
        run=run,
        checkpoint=checkpoint,
        remedy=remedy,
    )
    verify_files(folder, manifest.files)
    table = pa.concat_tables(_parts(folder, manifest))
    order = np.argsort(table["row_id"].to_numpy(), kind="stable")
    row_ids, cutoffs = table["row_id"].to_numpy()[order], table["cutoff"].to_numpy()[order]
    twice = row_ids[1:][np.diff(row_ids) == 0]
    if len(twice):
        got = f"row {twice[0]} more than once ({len(twice)} rows alike)"
        raise MismatchError(Problem(str(folder), "each row scored once", got, "Run `gemcut train --fresh`."))
    logits = np.stack([table[f"logit.{name}"].to_numpy() for name in manifest.objectives], axis=1)
    return SoftLabels(manifest, row_ids, cutoffs, logits[order])


def _parts(folder: Path, manifest: SoftLabelManifest) -> Iterator[pa.Table]:
    """An empty table, for a store of no part, and the parts."""
    logits = {f"logit.{name}": pa.float32() for name in manifest.objectives}
    yield pa.schema({"row_id": pa.int64(), "cutoff": pa.int64(), **logits}).empty_table()
    for name in sorted(manifest.files):
        yield pq.read_table(folder / name)


def _read_manifest(folder: Path, remedy: str) -> SoftLabelManifest:
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise MismatchError(Problem(str(path), "a soft-label store", "no such file", remedy))
    try:
        return SoftLabelManifest.model_validate(orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise MismatchError(Problem(str(path), "a soft-label manifest", str(error).splitlines()[0], remedy)) from error
