"""What was verified need not be read again: files that are still the very ones whose sha256 was compared.

A file is known by its inode, size, time of modification and time of change. No program can set the last, so a file
that was written to, replaced, or given an older time is read again. Rot of the disk changes none of these: what is
remembered holds for a day, and then everything is read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from eval.artifacts import FileDigest, fingerprint, verify_files, write_json
from serving.errors import UserError

FILE = "verified.json"
REMEMBERED_S = 24 * 3600.0
SETTLED_S = 1.0
"""A younger file is not remembered: two writes within a tick of the file system's clock have the same times."""

Marks = tuple[int, int, int, int]


class _Verified(BaseModel):
    """What a cache file says: when the files were read, what they were by their digests, and how each is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verified_s: float
    fingerprint: str
    files: dict[str, Marks]

    def covers(self, wanted: str, marks: dict[str, Marks], *, now: float) -> bool:
        """Whether it is about these files, and not too old at `now`."""
        return (self.fingerprint, self.files) == (wanted, marks) and 0 <= now - self.verified_s < REMEMBERED_S


def cache_of(store: Path) -> Path:
    """Folder beside a store for what was once worked out from it; it may be deleted at any time, and costs a start."""
    return store.with_name(f"{store.name}.cache")


def verify_once(folder: Path, digests: Mapping[str, FileDigest], *, clock: Callable[[], float] = time.time) -> None:
    """As `verify_files`, but files that were verified within a day and are still the same are not read.

    What is remembered lies in `verified.json` of `cache_of(folder)`; without that file everything is read.

    Args:
        folder: holds exactly the files of `digests`, and a manifest.
        digests: of every file.
        clock: seconds since 1970 UTC.

    Raises:
        DamagedError: with every file that is missing, truncated, changed or unexpected.
    """
    path, now = cache_of(folder) / FILE, clock()
    verify_files(folder, digests, contents=False)
    marks = {name: _marks(folder / name) for name in sorted(digests)}
    known = _read(path)
    if known and known.covers(fingerprint(digests), marks, now=now):
        return
    verify_files(folder, digests)
    if marks != {name: _marks(folder / name) for name in sorted(digests)}:
        return  # somebody wrote while we read
    if all(now - changed_ns / 1e9 > SETTLED_S for *_, changed_ns in marks.values()):
        _remember(path, _Verified(verified_s=now, fingerprint=fingerprint(digests), files=marks))


def _marks(path: Path) -> Marks:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(path: Path) -> _Verified | None:
    """What is remembered; a file that is not whole or not ours is as good as none."""
    try:
        return _Verified.model_validate(orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError, ValidationError):
        return None


def _remember(path: Path, content: _Verified) -> None:
    """Where it can not be written, as beside a store that is mounted read-only, nothing is remembered."""
    try:
        write_json(path, content.model_dump())
    except UserError:
        return
