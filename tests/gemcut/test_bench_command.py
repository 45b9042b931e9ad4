"""`gemcut bench foundation`: what it says, in which units; never how fast anything was."""

import math
import subprocess
import sys

import orjson
import pytest

COMMAND = ("bench", "foundation", "--no-compile", "--batches", "2", "--rounds", "2", "--json")


@pytest.fixture(scope="module")
def found(tiny_teacher):
    command = [sys.executable, "-m", "gemcut", *COMMAND, "-p", str(tiny_teacher.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return orjson.loads(done.stdout.splitlines()[-1]), done.stderr


def test_the_last_line_is_the_whole_result(found):
    result, _ = found
    assert list(result) == ["floors", "step", "parts", "layouts", "reader", "compiled"]
    assert result["compiled"] == {}


def test_a_step_takes_the_useful_flops_over_time_and_peak(found):
    result, _ = found
    floors, step = result["floors"], result["step"]
    mfu = step["useful_flops"] / step["seconds"] / floors["peak_flops_per_s"]
    assert step["e2e_mfu"] == pytest.approx(mfu)
    assert step["e2e_mfu"] == pytest.approx(step["local_mfu"] * step["scaling_ratio"])
    assert floors["matmul_floor_s"] == pytest.approx(step["useful_flops"] / floors["peak_flops_per_s"])


def test_the_split_of_a_step_is_whole(found):
    split = found[0]["step"]["split"]
    assert sum(split.values()) == pytest.approx(1)
    assert {"embedding", "loss", "backward, tables, clipping", "dense optimizer", "model (the rest)"} <= set(split)


def test_local_mfu_is_the_mean_of_the_parts_weighted_by_flops(found):
    result, _ = found
    parts = result["parts"].values()
    weight = sum(part["flops_share"] for part in parts)
    assert 0.9 < weight <= 1 + 1e-9
    mean = sum(part["flops_share"] * part["mfu"] for part in parts) / weight
    assert result["step"]["local_mfu"] == pytest.approx(mean)


def test_every_comparison_is_a_median_within_its_range(found):
    layouts = found[0]["layouts"]
    ratios = [layouts[name] for name in layouts if "over" in name]
    assert len(ratios) == 3
    for ratio in ratios:
        assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"] < math.inf


def test_people_see_the_floors_first(found):
    _, text = found
    places = [text.index(title) for title in ("floors", "step", "parts", "comparisons", "next:")]
    assert places == sorted(places)


def test_without_a_store_it_says_what_to_run(tiny_logs):
    command = [sys.executable, "-m", "gemcut", *COMMAND, "-p", str(tiny_logs.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "gemcut prepare" in done.stderr
