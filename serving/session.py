"""The one place that knows ONNX Runtime's options."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from serving.errors import BundleError, Problem


def session_options() -> ort.SessionOptions:
    """Options for a short tail on shared cores; scale with processes, not with threads.

    One thread and no spinning: a spinning pool multiplies p99 when neighbours want the cores. No arena: it keeps the
    memory of the largest request for ever, and leaving it out costs no time.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def open_session(model: Path) -> ort.InferenceSession:
    """An inference session on the CPU; loaded by path, so that external data is memory-mapped.

    It may be shared by threads. Create it after a fork, never before.

    Raises:
        BundleError: the runtime refuses the graph.
    """
    try:
        return ort.InferenceSession(str(model), session_options(), providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's errors share no narrower base class
        problem = Problem(
            str(model), f"a graph that ONNX Runtime {ort.__version__} runs", _first_line(error), "Export it again."
        )
        raise BundleError(problem) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
