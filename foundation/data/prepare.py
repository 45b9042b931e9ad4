"""`gemcut prepare`: a user's tables → a request store, out of core, resumable, published by one rename.

Every step writes one file beside its name and renames it, so a step is done exactly if its file is there, and a run
that was killed goes on after its last whole file. Work lies in `TARGET.partial`: `staged/` holds sorted intermediates,
`store/` becomes TARGET. All orders are total, so the same tables give the same bytes, whatever memory and threads.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from eval.artifacts import MANIFEST_FILE, disk_errors, verify_files, write_file, write_json
from eval.locks import only_one
from foundation.data.checks import duplicate_problems, row_problems
from foundation.data.parts import check_row_ids, write_parts
from foundation.data.past_sums import write_past
from foundation.data.schema import Schema
from foundation.data.sources import Source, read_sources
from foundation.data.sql import connect
from foundation.data.staging import Staging, stage_events, stage_items, stage_requests, stage_users
from foundation.data.statistics import write_statistics
from foundation.data.store import PAST_FILE, StoreManifest, content_digest, read_manifest, statistic_digests, summarise
from serving.errors import DataError, Problem, UserError

Progress = Callable[[float, str], None]
ALREADY = "already prepared from these tables"


def prepare(
    schema: Schema,
    root: Path,
    target: Path,
    *,
    memory: str = "4GB",
    threads: int = 2,
    progress: Progress | None = None,
) -> StoreManifest:
    """Make the request store of a project, or go on making it, or find that it is made.

    Args:
        schema: the project's data sections.
        root: folder that the tables' paths are relative to.
        target: folder of the store; an older store there is replaced at the very end.
        memory: what DuckDB may use; sorts and joins beyond it spill to `TARGET.partial`.
        threads: DuckDB's threads.
        progress: called with the part that is done, in [0, 1], and what comes next.

    Returns:
        The manifest of the store.

    Raises:
        DataError: with every problem of the tables that was found before the first one that stops the work.
        UserError: disk or memory do not suffice, or another run works on the same target.
    """
    say = progress or (lambda _fraction, _message: None)
    sources = read_sources(schema, root)
    inputs = input_digest(schema, root, sources)
    partial = target.with_name(f"{target.name}.partial")
    made = _finished(target, inputs)
    if made is not None and made.statistics == statistic_digests(schema):
        shutil.rmtree(partial, ignore_errors=True)
        say(1.0, ALREADY)
        return made
    with disk_errors(partial), _workplace(partial, inputs + orjson.dumps(statistic_digests(schema)).decode(), say):
        if made is not None:
            _link_all_but_statistics(target, partial / "store")
        else:
            _make(schema, sources, partial, memory=memory, threads=threads, say=say)
        _make_statistics(schema, partial, memory=memory, threads=threads, say=say)
        say(0.9, "past")
        write_past(schema, partial / "store", scratch=partial / "scratch")
        say(0.95, "checksums")
        manifest = _sealed(schema, partial / "store", inputs)
        _publish(partial / "store", target)
    shutil.rmtree(partial, ignore_errors=True)
    say(1.0, "done")
    return manifest


def input_digest(schema: Schema, root: Path, sources: tuple[Source, ...]) -> str:
    """sha256 of what a store is made from: what is read, and path, size, time of change and footer of every file."""
    files = [
        [source.name, os.path.relpath(file, root), file.stat().st_size, file.stat().st_mtime_ns, _footer_digest(file)]
        for source in sources
        for file in source.files
    ]
    return hashlib.sha256(orjson.dumps([content_digest(schema), files])).hexdigest()


def _make(
    schema: Schema, sources: tuple[Source, ...], partial: Path, *, memory: str, threads: int, say: Progress
) -> None:
    with connect(memory=memory, threads=threads, temporary=partial / "spill") as connection:
        staging = Staging(schema, {source.name: source for source in sources}, partial, connection)
        say(0.0, "checking rows")
        _check(staging)
        say(0.1, "items")
        stage_items(staging)
        for place, log in enumerate(schema.data.events):
            say(0.2 + 0.2 * place / len(schema.data.events), f"events {log}")
            stage_events(staging, log)
        say(0.4, "users")
        stage_users(staging)
        say(0.5, "requests")
        stage_requests(staging)
        for done in write_parts(staging):
            say(0.7 + 0.1 * done, "requests")
        say(0.8, "row ids")
        check_row_ids(staging)


def _make_statistics(schema: Schema, partial: Path, *, memory: str, threads: int, say: Progress) -> None:
    with connect(memory=memory, threads=threads, temporary=partial / "spill") as connection:
        for done in write_statistics(schema, partial / "store", staged=partial / "staged", connection=connection):
            say(0.8 + 0.1 * done, "statistics")


def _link_all_but_statistics(made: Path, store: Path) -> None:
    """Take the files of a store that is right but for its statistics, and what is summed up of them.

    They never change, so they need no copy.
    """
    for name in read_manifest(made).files:
        target = store / name
        if not name.startswith("statistics/") and name != PAST_FILE and not target.exists():
            try:
                os.link(made / name, target)
            except OSError:  # a file system without links
                aside = target.with_name(f"{target.name}.aside")
                shutil.copyfile(made / name, aside)
                aside.replace(target)


def _check(staging: Staging) -> None:
    """Refuse rows that can not be; a file says that they were looked at."""
    done = staging.staged / "checked"
    if done.exists():
        return
    problems: list[Problem] = []
    for source in staging.sources.values():
        problems += row_problems(staging.connection, source)
        if source.name in ("items", "users"):
            problems += duplicate_problems(staging.connection, source, source.name[:-1])
    if problems:
        raise DataError(problems)
    write_file(done, b"")


def _finished(target: Path, inputs: str) -> StoreManifest | None:
    """The manifest of a whole store made from these inputs, whatever its statistics are."""
    try:
        manifest = read_manifest(target)
        verify_files(target, manifest.files)
    except UserError:
        return None
    return manifest if manifest.input_digest == inputs else None


@contextmanager
def _workplace(partial: Path, inputs: str, say: Progress) -> Iterator[None]:
    """The folder of an unfinished run, kept if it was of the same inputs, emptied if not; locked for this process."""
    with only_one(partial / "lock", what=str(partial)):
        record = partial / "inputs"
        if record.exists() and record.read_text() == inputs:
            say(0.0, "going on from an unfinished run")
        else:
            for entry in partial.iterdir():
                if entry.name != "lock":
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for folder in ("spill", "scratch"):
            shutil.rmtree(partial / folder, ignore_errors=True)
        for folder in ("scratch", "staged", "store/events", "store/requests"):
            (partial / folder).mkdir(parents=True, exist_ok=True)
        for file in (partial / "store").rglob("*"):
            if file.is_file() and file.suffix not in (".arrow", ".parquet"):
                file.unlink()  # a file that was being written when the run was killed
        write_file(record, inputs.encode())
        yield


def _sealed(schema: Schema, store: Path, inputs: str) -> StoreManifest:
    """Write the manifest, last of all files."""
    manifest = summarise(store, schema, input_digest=inputs)
    write_json(store / MANIFEST_FILE, manifest.model_dump(mode="json"))
    return manifest


def _publish(store: Path, target: Path) -> None:
    """Give the store its name; an older one makes room first and goes last."""
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    store.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _footer_digest(file: Path) -> str:
    """sha256 of a parquet file's footer, which holds the place and the bounds of every column chunk."""
    with file.open("rb") as content:
        content.seek(-8, os.SEEK_END)
        length = int.from_bytes(content.read(4), "little")
        content.seek(-8 - length, os.SEEK_END)
        return hashlib.sha256(content.read(length)).hexdigest()
