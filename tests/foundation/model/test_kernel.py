"""The GPU's kernel on a machine without one: its arithmetic by Triton's interpreter, its code by Triton's compiler."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from foundation.kernels.activation import Pointwise

SUITE = Path(__file__).with_name("test_gdpa.py")
AMPERE, HOPPER = 80, 90  # what NVIDIA calls their compute capabilities
SHARED_BYTES = {AMPERE: 163 * 1024, HOPPER: 227 * 1024}  # that one program can have there

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.slow
def test_the_suite_of_every_device_holds_for_the_kernel_interpreted():
    """In a process of its own: what Triton makes of a kernel is decided when Triton is imported."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "interpreter", SUITE],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=SUITE.parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "skipped" not in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("capability", [AMPERE, HOPPER])
@pytest.mark.parametrize("name", ["forward", "backward_queries", "backward_keys"])
def test_the_kernels_compile_for_gpus_and_fit_their_shared_memory(name, capability):
    import triton
    from triton.backends.compiler import GPUTarget

    from foundation.kernels import gdpa_kernels, gdpa_triton

    rows, offsets = torch.zeros(4, 2, 128, dtype=torch.bfloat16), torch.tensor([0, 4])
    constants = dict(gdpa_triton.Launch(rows, rows, offsets, offsets, Pointwise("gelu", 0.5, window=9)).constants)
    options = {"num_stages": constants.pop("num_stages")}
    kernel = getattr(gdpa_kernels, name)
    kinds = dict.fromkeys(constants, "constexpr") | {"num_requests": "i32"}
    kinds |= dict.fromkeys(("requests", "starts", "query_offsets", "key_offsets"), "*i64")
    source = triton.compiler.ASTSource(
        kernel,
        {argument: kinds.get(argument, "*bf16") for argument in kernel.arg_names},
        {(kernel.arg_names.index(constant),): value for constant, value in constants.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.metadata.shared <= SHARED_BYTES[capability]
