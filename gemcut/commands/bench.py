"""`gemcut bench foundation`: floors of the machine first, then how fast the model of a project learns on it."""

from __future__ import annotations

from typing import Any

from gemcut.console import Screen
from gemcut.project import LoadedProject
from gemcut.workspace import Workspace


def bench_foundation(
    loaded: LoadedProject, screen: Screen, *, batches: int, rounds: int, compiled: bool
) -> dict[str, Any]:
    """Measure on the project's store; nothing is written."""
    from foundation.efficiency.bench import BenchSize
    from foundation.efficiency.bench import bench_foundation as run

    size = BenchSize(batches=batches, rounds=rounds, compiled=compiled)
    with screen.progress("bench") as tell:
        found = run(Workspace(loaded).foundation_job(), size, tell)
    _floors(found["floors"], screen)
    _step(found["step"], screen)
    _parts(found["parts"], screen)
    _comparisons(found, screen)
    return found


def _floors(floors: dict[str, Any], screen: Screen) -> None:
    screen.say("[bold]floors[/bold] of this machine")
    screen.say(
        f"  matrix products   {floors['peak_flops_per_s'] / 1e9:8.0f} GFLOP/s float32, {floors['threads']} threads, "
        f"N = {floors['peak_size']}"
    )
    screen.say(f"  memory            {floors['memory_bytes_per_s'] / 1e9:8.1f} GB/s read and written")
    screen.say(
        f"  a row             {floors['flops_per_row'] / 1e6:8.2f} MFLOP forward and backward, "
        f"{floors['embedding_bytes_per_row']:,.0f} embedding bytes, {floors['reader_bytes_per_row']:,.0f} bytes read"
    )
    screen.say(
        f"  a step, at least  {floors['matmul_floor_s'] * 1e3:8.2f} ms of products, "
        f"{floors['embedding_floor_s'] * 1e3:.2f} ms of embeddings, {floors['reader_floor_s'] * 1e3:.2f} ms of reading"
    )


def _step(step: dict[str, Any], screen: Screen) -> None:
    rows = step["rows_per_s"]
    screen.say("[bold]step[/bold], median \\[range of the rounds]")
    screen.say(
        f"  {step['seconds'] * 1e3:.1f} ms   {rows['median']:,.0f} \\[{rows['low']:,.0f}, {rows['high']:,.0f}] rows/s"
        f"   {step['events_per_s']:,.0f} events/s   peak memory {step['peak_memory_bytes'] / 2**30:.2f} GiB"
    )
    screen.say(
        f"  E2E MFU {step['e2e_mfu']:.1%} = local MFU {step['local_mfu']:.1%} x scaling ratio "
        f"{step['scaling_ratio']:.2f}"
    )
    for name, share in step["split"].items():
        if share >= 0.01:
            screen.say(f"    {share:6.1%}  {name}")


def _parts(parts: dict[str, Any], screen: Screen) -> None:
    screen.say("[bold]parts[/bold] alone, forward and backward")
    for name, part in sorted(parts.items(), key=lambda item: -item[1]["seconds"]):
        if part["flops_share"] >= 0.01:
            screen.say(
                f"  {part['seconds'] * 1e3:8.2f} ms  {part['flops_share']:6.1%} of FLOPs  MFU {part['mfu']:6.1%}"
                f"  {name}"
            )


def _comparisons(found: dict[str, Any], screen: Screen) -> None:
    screen.say("[bold]comparisons[/bold], times faster, median \\[range of the rounds]")
    layouts = found["layouts"]
    _times("request-major over impression-major, whole step", layouts["request_major_over_impression_major"], screen)
    if "jagged_over_padded" in layouts:
        history = layouts["history"]
        _times("jagged over padded encoder in plain torch", layouts["jagged_over_padded"], screen)
        _times("jagged over padded encoder, our kernel", layouts["jagged_over_padded_our_kernel"], screen)
        screen.say(f"         histories of {history['mean']:.0f} events on average, {history['longest']} the longest")
    reader = found["reader"]
    screen.say(
        f"  {reader['times_faster_than_model']:6.1f}x  reader alone over the model: "
        f"{reader['rows_per_s']['median']:,.0f} rows/s"
    )
    for name, result in found["compiled"].items():
        if "failed" in result:
            screen.say(f"     fails  torch.compile of {name}: {result['failed']}")
        else:
            _times(f"torch.compile of {name}, over eager", result["speedup"], screen)


def _times(what: str, measured: dict[str, float], screen: Screen) -> None:
    screen.say(f"  {measured['median']:6.2f}x  {what} \\[{measured['low']:.2f}, {measured['high']:.2f}]")
