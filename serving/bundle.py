"""A bundle folder, verified: nothing in it is read by a runtime before this file has said that it is whole and ours."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from serving.errors import BundleError, Problem
from serving.external import external_files
from serving.manifest import FORMAT, MANIFEST_FILE, MODEL_FILE, FileEntry, Manifest

_COPY_AGAIN = "Copy the bundle again, or export it again."


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose files are all there and are the ones that were exported.

    Attributes:
        folder: where it lies.
        manifest: its contract.
        digest: sha256 of `manifest.json`, which pins every other file.
    """

    folder: Path
    manifest: Manifest
    digest: str

    @property
    def model(self) -> Path:
        """The graph's file."""
        return self.folder / MODEL_FILE


def load_bundle(folder: Path | str) -> Bundle:
    """Read a bundle's manifest and check every file against it.

    Args:
        folder: the bundle's folder.

    Raises:
        BundleError: the folder or a file is missing, damaged, a link or of a newer format, or the graph reads a file
            that the manifest does not list. Every problem is listed.
    """
    folder = Path(folder)
    content = _manifest_bytes(folder)
    manifest = parse_manifest(content, where=str(folder / MANIFEST_FILE))
    problems = _name_problems(folder, manifest)
    if not problems:
        problems = [
            problem for name, entry in manifest.files.items() if (problem := _file_problem(folder / name, entry))
        ]
    if not problems:
        problems = _external_problems(folder, manifest)
    if problems:
        raise BundleError(problems)
    return Bundle(folder, manifest, hashlib.sha256(content).hexdigest())


def parse_manifest(content: bytes, *, where: str = MANIFEST_FILE) -> Manifest:
    """A manifest from its JSON bytes.

    Raises:
        BundleError: not JSON, of a newer format, or not what `Manifest` says; every problem is listed.
    """
    try:
        raw: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BundleError(Problem(where, "a JSON document", str(error), _COPY_AGAIN)) from error
    found = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise BundleError(
            Problem(
                f"{where}: format",
                f"at most {FORMAT}",
                f"{found}, written by a newer gemcut",
                "Upgrade gemcut here, or export with this version.",
            )
        )
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise BundleError([_validation_problem(where, detail) for detail in error.errors()]) from error


def _validation_problem(where: str, detail: Any) -> Problem:
    path = ".".join(str(part) for part in detail["loc"])
    remedy = "Export the bundle again, or upgrade gemcut here."
    return Problem(f"{where}: {path}", detail["msg"], repr(detail["input"])[:80], remedy)


def _manifest_bytes(folder: Path) -> bytes:
    if not folder.is_dir():
        raise BundleError(Problem(str(folder), "a bundle folder", "no such folder", "Name a folder made by an export."))
    path = folder / MANIFEST_FILE
    problem = _kind_problem(path)
    if problem:
        raise BundleError(problem)
    return path.read_bytes()


def _name_problems(folder: Path, manifest: Manifest) -> list[Problem]:
    """Every listed file lies right in the folder, and the graph is one of them."""
    where = f"{folder / MANIFEST_FILE}: files"
    problems = [
        Problem(where, "names of files in the bundle's own folder", repr(name), "Export the bundle again.")
        for name in manifest.files
        if not _plain(name) or name == MANIFEST_FILE
    ]
    if MODEL_FILE not in manifest.files:
        listed = ", ".join(manifest.files) or "nothing"
        problems.append(Problem(where, f"{MODEL_FILE} among them", listed, "Export the bundle again."))
    return problems


def _plain(name: str) -> bool:
    return name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0:")


def _kind_problem(path: Path) -> Problem | None:
    """A regular file, no link of either kind: what a link leads to can change without the bundle knowing."""
    if path.is_symlink():
        return Problem(str(path), "a file", "a symbolic link", "Copy the file itself into the bundle.")
    if not path.is_file():
        return Problem(str(path), "a file", "nothing of that name" if not path.exists() else "no file", _COPY_AGAIN)
    if path.stat().st_nlink > 1:
        return Problem(str(path), "a file of its own", "a hard link", "Copy the file instead of linking it.")
    return None


def _file_problem(path: Path, entry: FileEntry) -> Problem | None:
    problem = _kind_problem(path)
    if problem:
        return problem
    size = path.stat().st_size
    if size != entry.bytes:
        return Problem(str(path), f"{entry.bytes} bytes", f"{size} bytes", _COPY_AGAIN)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        return Problem(str(path), f"sha256 {entry.sha256}", digest, _COPY_AGAIN)
    return None


def _external_problems(folder: Path, manifest: Manifest) -> list[Problem]:
    wanted = external_files((folder / MODEL_FILE).read_bytes())
    return [
        Problem(
            f"{folder / MODEL_FILE}: external data",
            "weights in a file that the manifest lists",
            repr(location),
            "Do not use this bundle; export it again.",
        )
        for location in sorted(wanted - (set(manifest.files) - {MODEL_FILE}))
    ]
