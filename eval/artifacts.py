"""Files on disk that are either whole or not there: write aside, fsync, rename; and digests to recognise them by.

A crash leaves at most a hidden `.NAME.HOST-PID-*.partial` beside the target; the next write of that target removes it.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from serving.errors import DamagedError, Problem, UserError

MANIFEST_FILE = "manifest.json"
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})

REMEDIES = {
    errno.ENOSPC: "Free space on this disk, or choose another folder; then run the same command again.",
    errno.EDQUOT: "Free some of the disk quota, or choose another folder; then run the same command again.",
    errno.EROFS: "The disk is read-only: choose another folder.",
    errno.EACCES: "Ask for the right to write there, or choose another folder.",
    errno.EPERM: "Ask for the right to write there, or choose another folder.",
}


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file is recognised by: sha256 in 64 hexadecimal digits, and its size in bytes."""

    sha256: str
    bytes: int


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file or nothing; replaces an existing one atomically and makes missing parent folders.

    Raises:
        UserError: the disk is full, read-only or not ours.
    """
    with disk_errors(path, num_bytes=len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
        partial = _partial(path)
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, indented by 2; dataclasses and numpy arrays are allowed.

    NaN and infinities become null, "undefined", because JSON has no such numbers. Keys must be strings.
    """
    options = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    write_file(path, orjson.dumps(value, option=options))


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target`, which becomes `target` if the block ends well and vanishes if it does not.

    An existing target stays until the end; between its going and the new one's coming are two renames and nothing else.

    Raises:
        UserError: the disk is full, read-only or not ours, or `target` is a file. Other errors of the block pass as
            they are.
    """
    with disk_errors(target):
        _refuse_file(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        partial = _partial(target)
        partial.mkdir()
    try:
        with disk_errors(target, only=DISK_ERRORS):
            yield partial
        with disk_errors(target):
            _sync_tree(partial)
            _publish(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def disk_errors(path: Path, *, num_bytes: int | None = None, only: Collection[int] | None = None) -> Iterator[None]:
    """Turn an `OSError` of the block into a `UserError` that names `path` and what to do; `only` some error numbers."""
    try:
        yield
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        what = "to write" if num_bytes is None else f"to write {num_bytes:,} bytes"
        remedy = REMEDIES.get(error.errno or 0, "Mend this, or choose another folder; then run the same command again.")
        raise UserError(Problem(str(path), what, f"{error.strerror or error}", remedy)) from error


def remove_leftovers(target: Path) -> None:
    """Remove what writers of `target` that died on this machine left beside it; bring back a target caught mid-swap."""
    for leftover in target.parent.glob(glob.escape(f".{target.name}.{socket.gethostname()}-") + "*-*.*"):
        owner, kind = leftover.name.rsplit("-", 2)[1], leftover.suffix
        if kind not in (".partial", ".old") or not owner.isdecimal() or _is_alive(int(owner)):
            continue
        if kind == ".old" and not target.exists():
            leftover.rename(target)
        elif leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """sha256 of a file's content, read in pieces: 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(folder: Path, *, exclude: Collection[str] = (MANIFEST_FILE,)) -> dict[str, FileDigest]:
    """Digest of every file under a folder by its relative posix path, sorted; by default all but the manifest."""
    files = _files(folder, exclude)
    return {name: FileDigest(sha256_of(path), path.stat().st_size) for name, path in files.items()}


def fingerprint(digests: Mapping[str, FileDigest]) -> str:
    """sha256 over lines "SHA256  NAME", sorted by name: what `sha256sum FILES | sha256sum` prints.

    Example:
        >>> fingerprint({"a": FileDigest("00", 1), "b": FileDigest("11", 1)})[:8]
        '0c7e019c'
    """
    lines = "".join(f"{digests[name].sha256}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def verify_files(
    folder: Path,
    digests: Mapping[str, FileDigest],
    *,
    exclude: Collection[str] = (MANIFEST_FILE,),
    contents: bool = True,
) -> None:
    """Check that a folder holds exactly these files; without `contents` only names and sizes, which is quick.

    Names of `digests` are compared and never opened, so that a hostile manifest reaches nothing outside the folder.

    Raises:
        DamagedError: with every file that is missing, truncated, changed or unexpected.
    """
    if not folder.is_dir():
        raise DamagedError(Problem(str(folder), "a folder", "nothing there", "Check the path, or make it again."))
    remedy = f"Do not edit {folder.name} by hand; make it again."
    files, problems = _files(folder, exclude), []
    for name in sorted(digests.keys() | files.keys()):
        where = str(folder / name)
        if name not in digests:
            problems.append(Problem(where, "no such file", "a file that the manifest does not name", remedy))
        elif name not in files:
            problems.append(Problem(where, f"a file of {digests[name].bytes:,} bytes", "no file", remedy))
        elif (size := files[name].stat().st_size) != digests[name].bytes:
            problems.append(Problem(where, f"{digests[name].bytes:,} bytes", f"{size:,} bytes", remedy))
        elif contents and (found := sha256_of(files[name])) != digests[name].sha256:
            problems.append(Problem(where, f"sha256 {digests[name].sha256[:12]}…", f"{found[:12]}…", remedy))
    if problems:
        raise DamagedError(problems)


def _files(folder: Path, exclude: Collection[str]) -> dict[str, Path]:
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: paths[name] for name in sorted(paths) if name not in exclude}


def _partial(target: Path) -> Path:
    owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return target.with_name(f".{target.name}.{owner}.partial")


def _publish(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        _sync(target.parent)
        return
    _refuse_file(target)
    old = partial.with_suffix(".old")
    target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        old.rename(target)
        raise
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _refuse_file(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(Problem(str(target), "a folder or nothing", "a file", "Move the file away."))


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            _sync(Path(root) / name)
        _sync(Path(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
