"""The benchmark of starts."""

import os

import pytest

from benchmarks.start_up import Bench, Start, summary


@pytest.mark.slow
def test_a_start_is_timed_to_the_end_of_its_first_step_and_stopped(tiny_teacher, tmp_path):
    bench = Bench(tmp_path / "bench", tiny_teacher.path, (), tiny_teacher.work / "store")
    bench.set_up()
    before = sorted(path.name for path in tiny_teacher.work.iterdir())
    start = bench.start("warm", 1)
    assert sum(start.phases.values()) == pytest.approx(start.seconds, abs=1e-3)
    assert {"launch", "imports", "store", "first batch", "first step"} <= start.phases.keys()
    assert start.cpu_s > 0
    assert min(start.phases.values()) > -1 / os.sysconf("SC_CLK_TCK")  # the kernel tells starts by that clock
    assert (bench.root / "work" / "foundation" / "checkpoints").is_dir()
    assert sorted(path.name for path in tiny_teacher.work.iterdir()) == before


def test_a_cold_start_has_nothing_of_ours(tmp_path):
    (tmp_path / "store").mkdir()
    bench = Bench(tmp_path / "bench", tmp_path / "project.yaml", (), tmp_path / "store")
    bench.set_up()
    for name in ("code/gemcut/__pycache__", "work/store.cache", "kernels/TRITON_CACHE_DIR"):
        (bench.root / name).mkdir(parents=True)
        (bench.root / name / "kept").touch()
    bench.forget()
    assert not list(bench.root.rglob("kept"))
    assert (bench.root / "code" / "gemcut" / "cli.py").is_file()


def test_what_is_compared_are_starts_of_one_round():
    def starts(*seconds, cpu_s, imports=()):
        parts = [{"imports": part} for part in imports] or [{}] * len(seconds)
        return [Start(*about) for about in zip(seconds, cpu_s, parts, strict=True)]

    found = {
        "cold": starts(8.0, 20.0, 9.0, cpu_s=(6.0, 6.0, 4.0), imports=(6.0, 16.0, 7.0)),
        "warm": starts(4.0, 4.0, 3.0, cpu_s=(3.0, 2.0, 2.0), imports=(3.0, 3.0, 2.0)),
        "import": starts(2.0, 4.0, 2.0, cpu_s=(2.0, 2.0, 2.0)),
    }
    told = summary(found)
    assert told["cold"] == {
        "seconds": {"median": 9.0, "range": [8.0, 20.0]},
        "cpu_s": {"median": 6.0, "range": [4.0, 6.0]},
        "parts": {"imports": 7.0},
    }
    assert told["cold_over_warm"] == {
        "seconds": {"median": 3.0, "range": [2.0, 5.0]},
        "cpu_s": {"median": 2.0, "range": [2.0, 3.0]},
    }
    assert told["warm_over_import"] == {
        "seconds": {"median": 1.5, "range": [1.0, 2.0]},
        "cpu_s": {"median": 1.0, "range": [1.0, 1.5]},
    }
