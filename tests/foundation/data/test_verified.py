"""A store's files are read again unless they are certainly the ones that were verified."""

import os
import time

import pytest

from eval.artifacts import digests_of
from foundation.data import verified
from foundation.data.verified import FILE, REMEMBERED_S, SETTLED_S, cache_of, verify_once
from serving.errors import DamagedError

LATER = 10 * SETTLED_S


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "a").write_bytes(b"first")
    (folder / "b").write_bytes(b"second")
    (folder / "manifest.json").write_text("{}")
    return folder


@pytest.fixture
def verify(store, monkeypatch):
    """Verify the store as it was made, so long after → how many files were read."""
    digests = digests_of(store)

    def run(after_s=LATER):
        whole = []

        def counted(folder, wanted, *, contents=True):
            whole.append(len(wanted) if contents else 0)
            return real(folder, wanted, contents=contents)

        real = verified.verify_files
        with monkeypatch.context() as patch:
            patch.setattr(verified, "verify_files", counted)
            verify_once(store, digests, clock=lambda: time.time() + after_s)
        return sum(whole)

    return run


def test_files_are_read_once(verify):
    assert [verify(), verify(), verify(LATER + REMEMBERED_S / 2)] == [2, 0, 0]


def test_after_a_day_they_are_read_again(verify):
    verify()
    assert [verify(LATER + 1.01 * REMEMBERED_S), verify(LATER + 1.02 * REMEMBERED_S)] == [2, 0]


def test_a_memory_from_the_future_is_none(verify):
    verify(LATER + 100)
    assert verify() == 2


def test_files_of_the_last_moment_are_not_remembered(verify):
    assert [verify(0), verify(0)] == [2, 2]


@pytest.mark.parametrize("age", ["new", "as before"])
def test_a_change_of_the_same_size_is_found_whatever_its_time_says(store, verify, age):
    verify()
    before = (store / "a").stat()
    (store / "a").write_bytes(b"First")
    if age == "as before":
        os.utime(store / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DamagedError, match="sha256"):
        verify()


def test_a_file_that_took_the_place_of_another_is_read(store, verify):
    verify()
    (store / "new").write_bytes(b"First")
    (store / "new").replace(store / "a")
    with pytest.raises(DamagedError, match="sha256"):
        verify()


@pytest.mark.parametrize("harm", [lambda folder: (folder / "a").unlink(), lambda folder: (folder / "c").touch()])
def test_files_that_come_and_go_are_found(store, verify, harm):
    verify()
    harm(store)
    with pytest.raises(DamagedError):
        verify()


def test_a_memory_of_other_digests_is_none(store, verify):
    verify()
    other = digests_of(store)
    other["a"] = type(other["a"])("0" * 64, other["a"].bytes)
    with pytest.raises(DamagedError, match="sha256"):
        verify_once(store, other, clock=lambda: time.time() + LATER)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b'{"verified_s": 1}'])
def test_a_memory_that_is_not_whole_is_none_and_made_anew(store, verify, content):
    verify()
    (cache_of(store) / FILE).write_bytes(content)
    assert [verify(), verify()] == [2, 0]


def test_where_nothing_can_be_remembered_all_is_read(store, verify):
    cache_of(store).write_text("a file where the folder should be")
    assert [verify(), verify()] == [2, 2]


def test_damage_is_not_remembered_as_verified(store, verify):
    (store / "a").write_bytes(b"First")
    for _ in range(2):
        with pytest.raises(DamagedError):
            verify()
