"""The kill test in small, and its parts: what is planned, how a checkpoint is damaged, where time went."""

import numpy as np
import pytest

from benchmarks.killing import Job, Kill, Killed, damage, planned
from benchmarks.lost_time import lost_time
from benchmarks.torture import _same, torture
from foundation.goodput.journal import Alive, Began, Ended, Saved
from gemcut.console import Screen


@pytest.mark.parametrize("seed", range(5))
def test_twenty_kills_hit_saves_starts_and_steps_of_each_rank_and_of_all(seed):
    kills = planned(20, np.random.default_rng(seed))
    assert len(kills) == 20
    assert sum(kill.moment == "saving" for kill in kills) == 6
    assert {kill.moment for kill in kills} == {"starting", "learning", "saving"}
    assert {kill.victim for kill in kills} == {"rank 0", "rank 1", "all"}
    assert sum(kill.moment == "saving" and kill.share == 0 for kill in kills) >= 3
    assert [kill.damage for kill in kills[-2:]] == ["truncated", "a bit flipped"]
    assert kills == planned(20, np.random.default_rng(seed))


def began(time_s, *, started_s, step=0):
    return Began(time_s=time_s, step=step, started_s=started_s, world_size=2, phases={})


def killed(moment, time_s, *, num_began):
    return Killed(Kill(moment, "all", 0.5), time_s, num_began, in_save=False, newest=None)


def test_the_parts_of_lost_time_are_those_worked_out_by_hand():
    left_alone = [
        began(110, started_s=100),
        Saved(time_s=121, step=10, stall_s=1),
        Saved(time_s=132, step=20, stall_s=1),
        Ended(time_s=132, step=20, how="finished", wait_s=0),
    ]
    events = [
        began(1010, started_s=1000),
        Saved(time_s=1021, step=10, stall_s=1),
        Alive(time_s=1024, step=13, wait_s=0),
        began(1052, started_s=1040, step=10),
        Saved(time_s=1063, step=20, stall_s=1),
        Ended(time_s=1063, step=20, how="finished", wait_s=0),
    ]
    kills = [killed("learning", 1026, num_began=1), killed("starting", 1034, num_began=1)]

    lost = lost_time(left_alone, events, kills)

    assert (lost.save_s, lost.interval_s, lost.mtbf_s, lost.start_s) == (1, 10, 20 / 2, 10)
    assert lost.predicted_ettr == pytest.approx(1 / (1 + 1 / 10 + 10 / 20 + 10 / 10))
    assert lost.measured_ettr == pytest.approx(20 / 63)
    assert [(part.predicted_s, part.measured_s) for part in lost.parts] == [
        (20, 20),
        (2, 2),
        (10, (1024 - 1021) + (1026 - 1024)),
        (2 * 10, 10 + 12),
        (0, 1034 - 1026),
        (0, 1040 - 1034),
    ]
    assert sum(part.predicted_s for part in lost.parts) == pytest.approx(20 / lost.predicted_ettr)
    assert sum(part.measured_s for part in lost.parts) == 1063 - 1000


@pytest.mark.parametrize(("how", "size", "num_differing"), [("truncated", 5, 0), ("a bit flipped", 10, 1)])
def test_the_largest_file_of_the_newest_checkpoint_is_damaged(tmp_path, how, size, num_differing):
    for step in ("step-00000001", "step-00000002"):
        (tmp_path / step).mkdir()
        for name, content in (("manifest.json", b"{}"), ("a.safetensors", b"abc"), ("b.safetensors", b"0123456789")):
            (tmp_path / step / name).write_bytes(content)
    path = damage(tmp_path, how)
    assert path == tmp_path / "step-00000002" / "b.safetensors"
    left = path.read_bytes()
    assert len(left) == size
    bits = [(one ^ other).bit_count() for one, other in zip(left, b"0123456789", strict=False)]
    assert sum(bits) == num_differing


@pytest.mark.distributed
@pytest.mark.slow
def test_a_training_killed_three_times_is_the_one_that_was_left_alone(tmp_path):
    found = torture(tmp_path / "torture", num_kills=3, seed=0, screen=Screen())
    assert [check for check in found["checks"] if not check["passed"]] == []
    assert len(found["kills"]) == 3
    alone, job = (Job(tmp_path / "torture" / name / "project.yaml") for name in ("alone", "killed"))
    damage(job.checkpoints, "a bit flipped")
    assert len([check for check in _same(alone, job) if not check.passed]) == 1
