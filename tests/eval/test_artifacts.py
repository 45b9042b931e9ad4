"""Files are whole or not there; digests find every kind of damage."""

from __future__ import annotations

import errno
import hashlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from eval.artifacts import (
    FileDigest,
    digests_of,
    fingerprint,
    sha256_of,
    staged_folder,
    verify_files,
    write_file,
    write_json,
)
from serving.errors import MismatchError, UserError


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.bin"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_json_is_sorted_indented_and_nan_is_null(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"b": float("nan"), "a": FileDigest("ab", 3)})
    text = (tmp_path / "x.json").read_text()
    assert text == '{\n  "a": {\n    "sha256": "ab",\n    "bytes": 3\n  },\n  "b": null\n}\n'
    assert orjson.loads(text)["b"] is None


def test_a_refused_write_is_a_user_error_with_path_and_bytes(tmp_path: Path) -> None:
    # A limit on file size refuses a write in the middle as a full disk does.
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from eval.artifacts import write_file; from serving.errors import UserError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "target = Path(sys.argv[1])\n"
        "try: write_file(target, bytes(5000))\n"
        "except UserError as error: print(error)\n"
        "print(sorted(p.name for p in target.parent.iterdir()))\n"
    )
    path = tmp_path / "big.bin"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "big.bin: expected to write 5,000 bytes; got File too large" in done.stdout
    assert "['big.bin']" in done.stdout
    assert path.read_bytes() == b"old"


def test_a_folder_appears_only_when_the_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "store"
    with staged_folder(target) as folder:
        (folder / "part").mkdir()
        (folder / "part" / "a").write_text("a")
        assert not target.exists()
        assert folder.parent == target.parent
    assert (target / "part" / "a").read_text() == "a"
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("failure", [RuntimeError("bug"), KeyboardInterrupt(), FileNotFoundError(errno.ENOENT, "gone")])
def test_a_failed_block_leaves_the_old_folder_and_passes_the_error(tmp_path: Path, failure: BaseException) -> None:
    target = tmp_path / "store"
    with staged_folder(target) as folder:
        (folder / "a").write_text("old")
    with pytest.raises(type(failure)), staged_folder(target) as folder:
        (folder / "a").write_text("new")
        raise failure
    assert (target / "a").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_a_full_disk_in_the_block_is_a_user_error(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match=r"store: expected to write; got No space left.*Free space"),
        staged_folder(tmp_path / "store"),
    ):
        Path("/dev/full").write_bytes(b"x")
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "store"
    for name in ("a", "b"):
        with staged_folder(target) as folder:
            (folder / name).write_text(name)
    assert [entry.name for entry in target.iterdir()] == ["b"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_a_file_in_the_folders_place_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("mine")
    with pytest.raises(UserError, match="expected a folder or nothing; got a file"), staged_folder(tmp_path / "store"):
        raise AssertionError("the block must not run")
    assert (tmp_path / "store").read_text() == "mine"


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from eval.artifacts import staged_folder\n"
        "with staged_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'a').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    target = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1
    with staged_folder(target) as folder:
        (folder / "a").write_text("whole")
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]
    assert (target / "a").read_text() == "whole"


def test_a_target_caught_between_the_two_renames_comes_back(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    old = tmp_path / f".store.{socket.gethostname()}-{dead.pid}-00000000.old"
    old.mkdir()
    (old / "a").write_text("old")
    with pytest.raises(RuntimeError), staged_folder(tmp_path / "store"):
        raise RuntimeError
    assert (tmp_path / "store" / "a").read_text() == "old"


def test_a_living_writers_folder_is_left_alone(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "store") as first:
        (first / "a").write_text("first")
        with staged_folder(tmp_path / "store") as second:
            (second / "a").write_text("second")
        assert first.exists()
    assert (tmp_path / "store" / "a").read_text() == "first"


def test_digests_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    contents = {"b": b"bee", "a": b"", "sub/c": bytes(range(256)) * 10_000}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "manifest.json").write_text("{}")
    digests = digests_of(tmp_path)
    expected = {
        name: FileDigest(hashlib.sha256(content).hexdigest(), len(content)) for name, content in contents.items()
    }
    assert digests == expected
    assert list(digests) == ["a", "b", "sub/c"]
    assert sha256_of(tmp_path / "b") == expected["b"].sha256
    listing = "".join(f"{expected[name].sha256}  {name}\n" for name in ("a", "b", "sub/c"))
    assert fingerprint(digests) == hashlib.sha256(listing.encode()).hexdigest()
    assert fingerprint(dict(reversed(digests.items()))) == fingerprint(digests)


def test_every_kind_of_damage_is_reported_at_once(tmp_path: Path) -> None:
    for name in ("kept", "missing", "truncated", "changed"):
        (tmp_path / name).write_text(name)
    digests = digests_of(tmp_path)
    verify_files(tmp_path, digests)
    (tmp_path / "missing").unlink()
    (tmp_path / "truncated").write_text("trunc")
    (tmp_path / "changed").write_text("CHANGED")
    (tmp_path / "unexpected").write_text("?")
    with pytest.raises(MismatchError) as caught:
        verify_files(tmp_path, digests)
    places = [Path(problem.where).name for problem in caught.value.problems]
    assert places == ["changed", "missing", "truncated", "unexpected"]
    with pytest.raises(MismatchError) as caught:
        verify_files(tmp_path, digests, contents=False)
    assert [Path(problem.where).name for problem in caught.value.problems] == ["missing", "truncated", "unexpected"]


def test_names_that_leave_the_folder_are_never_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    (tmp_path / "bundle").mkdir()
    with pytest.raises(MismatchError, match="no file"):
        verify_files(tmp_path / "bundle", {"../secret": FileDigest(sha256_of(secret), 1)})


def test_a_folder_that_is_not_there_is_a_mismatch(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="expected a folder; got nothing there"):
        verify_files(tmp_path / "none", {})
