"""Who failed first, as the ranks tell each other in the store where they met, and as torchrun reads it."""

import os
import time
from datetime import timedelta

import orjson
import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from foundation.goodput.journal import Journal
from foundation.parallel import watch
from foundation.parallel.failures import (
    Failure,
    FollowError,
    PeerError,
    first_failure,
    line_of_error,
    num_ranks,
    open_board,
    read_failure,
    tell_launcher,
)
from foundation.parallel.watch import is_of_peers
from foundation.training.rates import inverse_root
from gemcut.console import Screen
from gemcut.failed import tell_failure
from serving.errors import Problem, UserError

MISTAKE = UserError(Problem("there", "this", "that", "Mend it."))


@pytest.fixture
def become(tmp_path, monkeypatch):
    """Be a rank of two, that meet in a file and have torchrun's error files."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("GEMCUT_MEETING_FILE", str(tmp_path / "meeting"))

    def be(rank):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"error-{rank}.json"))
        return tmp_path / f"error-{rank}.json"

    be(0)
    return be


def failed(path, *, exit_code=1):
    return ProcessFailure(local_rank=0, pid=1, exitcode=exit_code, error_file=str(path))


def test_a_process_that_was_not_launched_with_others_is_its_own_first(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert num_ranks() == 1
    own = Failure.of(ValueError("no"))
    assert first_failure(own) is own


def test_the_failure_that_is_told_first_is_that_of_all(become):
    become(1)
    assert read_failure() is None
    one = Failure.of(ValueError("no"))
    assert first_failure(one) == one
    become(0)
    assert read_failure() == one
    assert first_failure(Failure.of(KeyError("other"))) == one
    become(1)
    assert first_failure(Failure.of(ValueError("no"))) == one, "told again, as where it is caught again"


def test_what_failed_before_these_processes_were_made_is_not_theirs(become, monkeypatch):
    become(1)
    first_failure(Failure(1, "long ago", 1, time_s=1.0))
    become(0)
    assert read_failure() is None
    own = Failure.of(ValueError("now"))
    assert first_failure(own) == own
    assert read_failure() == own


def test_a_restart_by_torchrun_begins_with_no_failure(become, monkeypatch):
    first_failure(Failure.of(ValueError("no")))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert read_failure() is None


def test_without_the_store_a_rank_tells_its_own(become, monkeypatch):
    monkeypatch.delenv("GEMCUT_MEETING_FILE")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "9")
    monkeypatch.setattr("foundation.parallel.failures.CONNECT", timedelta(seconds=0.1))
    own = Failure.of(ValueError("no"))
    assert first_failure(own) == own
    assert read_failure() is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_torchrun_takes_the_first_for_the_cause_whichever_it_sees_end_first(become, order):
    become(1)
    first = first_failure(Failure.of(ValueError("no")))
    paths = {}
    for rank in (0, 1):
        paths[rank] = become(rank)
        tell_launcher(first)
    summary = str(ChildFailedError("gemcut", {rank: failed(paths[rank]) for rank in order}))
    others, _, cause = summary.partition("Root Cause")
    assert "rank      : 1 " in cause
    assert "traceback : ValueError: no" in cause
    assert "rank 0 ends, since rank 1 failed first: ValueError: no" in others


def test_the_place_of_a_bug_is_the_innermost_line_of_ours():
    with pytest.raises(ZeroDivisionError) as caught:
        inverse_root(0)(1, 2)
    assert line_of_error(caught.value).startswith("foundation/training/rates.py:")
    assert Failure.of(caught.value).text.startswith(
        "ZeroDivisionError: division by zero, at foundation/training/rates."
    )
    with pytest.raises(ValueError, match="no") as elsewhere:
        raise ValueError("no")
    assert Failure.of(elsewhere.value).text == "ValueError: no"


def test_a_line_that_points_to_another_rank_is_one_line_and_short(become):
    long = Failure(1, "a\nb " * 1000, 1, 0.0)
    text = str(FollowError(long))
    assert text.startswith("rank 0 ends, since rank 1 failed first: a b a b")
    assert len(text.splitlines()) == 1
    assert len(text) < 400


@pytest.mark.parametrize(
    ("error", "is_theirs"),
    [
        (RuntimeError("[/a/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("/gloo/ in a file name"), False),
        (MISTAKE, False),
    ],
)
def test_what_the_other_ranks_did_is_told_from_what_this_one_did(error, is_theirs):
    assert is_of_peers(error) == is_theirs


def test_the_same_mistake_on_all_ranks_is_told_once(become, capsys):
    for rank in (1, 0):
        become(rank)
        assert tell_failure(MISTAKE, Screen()) == 3
    assert capsys.readouterr().err.count("Mend it.") == 1


def test_each_kind_of_end_has_its_exit_code_and_its_words(become, capsys):
    peer = PeerError(Problem("rank 0, step 3", "rank 1", "no sign of life", "Look."))
    assert tell_failure(peer, Screen()) == 1
    assert "no sign of life" in capsys.readouterr().err
    become(1)
    assert tell_failure(FollowError(Failure(0, "a mistake", 3, 0.0)), Screen()) == 3
    assert capsys.readouterr().err == "rank 1 ends, since rank 0 failed first: a mistake\n"


def test_a_bug_is_left_to_be_shown_with_its_stack_by_the_rank_that_has_it(become, capsys):
    path = become(1)
    assert tell_failure(ValueError("no"), Screen()) is None
    assert "rank 1 of 2 failed first" in capsys.readouterr().err
    assert orjson.loads(path.read_bytes())["message"]["message"] == "ValueError: no"
    become(0)
    assert tell_failure(ValueError("another"), Screen()) == 1
    assert capsys.readouterr().err == "rank 0 ends, since rank 1 failed first: ValueError: no\n"
    assert os.environ["RANK"] == "0"


def test_a_rank_gives_its_first_sign_at_once(become, monkeypatch):
    """One that is gone within a beat of its start has been heard of."""
    become(1)
    monkeypatch.setattr(watch, "BEAT_S", 3600.0)
    with watch.Watch(Journal(None), timedelta(minutes=1)):
        until = time.monotonic() + 20
        while not (given := open_board().check(["sign/1"])) and time.monotonic() < until:
            time.sleep(0.05)
    assert given
