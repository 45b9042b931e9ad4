"""The GPU check, rehearsed on a CPU: with all packages, with torch and numpy alone, and with a kernel that is wrong."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_attention, gpu_check
from benchmarks.gpu_network import LAYERS, Batch, drawn_batch, useful_flops
from benchmarks.gpu_timing import SMALL, Check, offsets_of, relative_error

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
MODEL = "foundation model"


def read(folder):
    (path,) = folder.glob("*.json")
    assert (path.with_suffix(".md")).read_text().startswith("# GPU check")
    return json.loads(path.read_bytes())


@NO_GPU
def test_without_a_gpu_nothing_is_claimed(tmp_path, capsys):
    assert gpu_check.main(["--out", str(tmp_path / "results")]) == gpu_check.NO_GPU
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing was measured" in told.err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("arguments", [["--gpu"], ["--device", "tpu"]])
def test_a_wrong_command_line_has_a_code_of_its_own(arguments):
    with pytest.raises(SystemExit) as left:
        gpu_check.main(arguments)
    assert left.value.code == gpu_check.USAGE


@NO_GPU
@pytest.mark.slow
def test_a_rehearsal_makes_every_part_and_says_what_it_is(tmp_path, capsys):
    assert gpu_check.main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == gpu_check.HELD
    found = read(tmp_path)
    assert found["is_rehearsal"]
    assert (found["skipped"], found["failed"]) == ({}, {})
    assert "rehearsal on a CPU" in capsys.readouterr().out
    names = [timed["name"] for timed in found["timed"]]
    assert any("nn.Embedding" in name for name in names)
    assert any("TorchRec" in name for name in names)
    assert all(timed["flops"] > 0 and timed["mfu"] > 0 and timed["peak_bytes"] is None for timed in found["timed"])
    assert len({check["name"] for check in found["checks"]}) == len(found["checks"])


@pytest.mark.slow
def test_torch_and_numpy_are_enough_and_what_is_left_out_is_said(tmp_path):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*declared["dependencies"], *declared["optional-dependencies"]["train"]]
    names = {entry.partition("=")[0].replace("-", "_") for entry in listed} - {"torch", "numpy"}
    modules = sorted(names - {"pyyaml"} | {"yaml", "tensordict", "torchmetrics", "triton"})
    assert {"torchrec", "pydantic", "orjson"} <= set(modules)
    program = f"""
import sys
sys.modules.update(dict.fromkeys({modules}))
from benchmarks.gpu_check import main
sys.exit(main(["--device", "cpu", "--small", "--out", {str(tmp_path)!r}]))
"""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "error", "-c", program]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == gpu_check.HELD, run.stderr
    found = read(tmp_path)
    assert list(found["skipped"]) == [MODEL]
    assert "project's own packages" in found["skipped"][MODEL]
    assert [MODEL in timed["name"] for timed in found["timed"]] == [False] * 3
    assert f"skipped, {MODEL}" in run.stdout


def test_a_kernel_that_is_a_little_wrong_is_found(monkeypatch):
    right = gpu_attention.gdpa
    monkeypatch.setattr(gpu_attention, "gdpa", lambda *rows, form: right(*rows, form=form) * 1.001)
    checks = gpu_attention.check_attention(CPU, ["float32"])
    assert [check.holds for check in checks] == [False] * (len(checks) - 1) + [True]


def test_what_fails_is_named_and_the_other_parts_are_made(monkeypatch, tmp_path):
    def fail(device, kinds):
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setattr(gpu_check, "check_attention", fail)
    for part in ("time_attention", "time_network"):
        monkeypatch.setattr(gpu_check, part, lambda device, size, peaks: [])
    monkeypatch.setattr(gpu_check, "_model", lambda report, device, size: None)
    assert gpu_check.main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == gpu_check.BROKEN
    found = read(tmp_path)
    assert found["failed"] == {"attention": "RuntimeError: no kernel image"}
    assert any("network" in check["name"] for check in found["checks"])


def test_an_error_that_is_no_number_does_not_hold():
    error = relative_error([torch.tensor([1.0]), torch.tensor([torch.nan])], [torch.ones(1), torch.ones(1)])
    assert not Check("", error, 1.0).holds
    assert Check("", 0.5, 0.5).holds


def test_useful_flops_of_events_are_those_of_the_formula():
    """Linear maps of each event, each pair of a history's events, and candidates over events; three passes of it."""
    width, events, candidates = SMALL.width, 7, SMALL.candidates

    def batch(number):
        ids = torch.zeros(max(number, candidates), dtype=torch.int64)
        ends = [offsets_of(torch.tensor([count])) for count in (candidates, number)]
        return Batch(ids[:1], ids[:candidates], ids[:number], *ends, torch.zeros(candidates))

    layer = 2 * events * width * 5 * width + 4 * width * events**2
    target = 2 * events * width * 2 * width + 4 * width * candidates * events
    got = useful_flops(SMALL, batch(events)) - useful_flops(SMALL, batch(0))
    assert got == 3 * (LAYERS * layer + target)


def test_a_drawn_batch_is_jagged_and_has_a_request_without_events():
    drawn = drawn_batch(SMALL)
    lengths = drawn.event_offsets.diff().tolist()
    assert lengths[0] == 0
    assert len(set(lengths)) > 2
    one = drawn.request(2)
    assert len(one.events) == lengths[2]
    assert torch.equal(one.items, drawn.items[2 * SMALL.candidates : 3 * SMALL.candidates])
