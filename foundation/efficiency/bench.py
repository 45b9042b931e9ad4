"""The foundation model's speed on this machine: floors first, then what is measured, compared in one run."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foundation.data.batch import Int64Array, RequestBatch
from foundation.data.reader import Reader
from foundation.data.store import Store
from foundation.efficiency.flops import FORWARD_AND_BACKWARD, FlopCount, counting_model, estimated_useful_flops
from foundation.efficiency.layouts import impression_major, num_bytes
from foundation.efficiency.padded import encoder_variants
from foundation.efficiency.parts import Call, StepClock, around, calls_of, forward_and_backward, parts_of
from foundation.efficiency.peak import matmul_peak, memory_bandwidth
from foundation.efficiency.timing import Measured, interleaved, speedup
from foundation.model.embedding import TableModel
from foundation.model.inputs import to_tensors
from foundation.parallel.world import World, joined_world
from foundation.training.foundation_model import build_trainer
from foundation.training.job import FoundationJob
from foundation.training.labels import settled_labels
from foundation.training.loss import masked_cross_entropy
from foundation.training.trainer import Trainer

EMBEDDING_PASSES = 3  # a looked-up row is read for the forward pass, read for its update and written
COUNTED_REQUESTS = 32
READ_BATCHES = 20
LEAST_SHARE = 0.05
MOST_PADDED_REQUESTS = 32

Tell = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class BenchSize:
    """How much to measure.

    Attributes:
        batches: batches of the training period, evenly spread, that a step is timed on.
        rounds: of each comparison, at least 2.
        compiled: whether to try `torch.compile` too, which takes a minute.
    """

    batches: int = 4
    rounds: int = 7
    compiled: bool = True


@dataclass(frozen=True, slots=True)
class _Bench:
    """What is measured: a trainer, its batches, and how to learn from one."""

    job: FoundationJob
    store: Store
    world: World
    trainer: Trainer
    positions: Int64Array
    batches: list[RequestBatch]
    size: BenchSize

    @property
    def model(self) -> TableModel:
        """The model as the trainer calls it, without what spreads it over ranks."""
        return self.trainer.sharded.model

    @property
    def num_rows(self) -> int:
        """Candidates of all batches."""
        return sum(batch.num_candidates for batch in self.batches)

    def loss_of(self, batch: RequestBatch) -> Callable[[Tensor], Tensor]:
        """The loss of a training step."""
        schema, device = self.job.schema, self.world.device
        weights = torch.tensor([objective.weight for objective in schema.objectives.values()], device=device)
        labels = torch.as_tensor(settled_labels(batch, schema, self.job.until_us)).to(device)
        return lambda logits: masked_cross_entropy(logits, labels, weights)

    def flops(self, count: FlopCount) -> int:
        """What steps over all batches need."""
        return count.step(scored_apart=self.trainer.averages)

    def steps(self, batches: list[RequestBatch]) -> Callable[[], None]:
        """Score and learn from every batch once."""
        prepared = [(batch, self.loss_of(batch)) for batch in batches]

        def run() -> None:
            for batch, loss_of in prepared:
                self.trainer.step(self.trainer.prepare(to_tensors(batch, self.world.device)), loss_of)

        return run


def bench_foundation(job: FoundationJob, size: BenchSize, tell: Tell | None = None) -> dict[str, Any]:
    """Measure a project's model on its store.

    The parameters are fresh and not saved. Times are of the threads that the project gives a process.

    Args:
        job: what would be trained.
        size: how much to measure.
        tell: is told how far the bench is.

    Returns:
        `floors`, `step`, `parts`, `layouts`, `reader`, `compiled`: see `docs/efficiency.md`.
    """
    say = tell or (lambda _fraction, _words: None)
    store = Store.open(job.store, job.schema)
    with joined_world(job.config.training.threads) as world:
        say(0.0, "batches")
        positions = store.select(end=job.until_us)
        batches = _spread_batches(job, store, positions, size.batches)
        bench = _Bench(job, store, world, build_trainer(job, world, store), positions, batches, size)
        say(0.05, "floors")
        counted = counting_model(job.schema, job.config.model)
        count = estimated_useful_flops(counted, batches, num_requests=COUNTED_REQUESTS)
        of_first = estimated_useful_flops(counted, batches[:1], num_requests=COUNTED_REQUESTS)
        floors = _floors(bench, count)
        say(0.25, "layouts")
        layouts, seconds = _layouts(bench)
        say(0.6, "parts")
        parts, local_mfu = _parts_alone(bench, of_first, floors["peak_flops_per_s"])
        step = _step(bench, count, floors["peak_flops_per_s"], seconds=seconds)
        step |= {"local_mfu": local_mfu, "scaling_ratio": step["e2e_mfu"] / local_mfu}
        say(0.8, "reader")
        reader = _reader_alone(bench, model_rows_per_s=step["rows_per_s"]["median"])
        say(0.85, "torch.compile")
        compiled = _compiled(bench, parts) if size.compiled else {}
    return {
        "floors": floors,
        "step": step,
        "parts": parts,
        "layouts": layouts,
        "reader": reader,
        "compiled": compiled,
    }


def _spread_batches(job: FoundationJob, store: Store, positions: Int64Array, number: int) -> list[RequestBatch]:
    """Whole batches around (i + 1/2) / n of the period, as the reader gives them; the middle one first.

    The first is typical of all, also where it is the only one: the very first of the log would have no histories.
    """
    requests = min(job.config.training.batch_requests, len(positions))
    number = min(number, len(positions) // requests)
    starts = ((2 * np.arange(number) + 1) * len(positions) - number * requests) // (2 * number)
    chosen = np.concatenate([positions[start : start + requests] for start in starts])
    with Reader(store, job.schema, chosen, requests, prefetch=0) as reader:
        batches = list(reader)
    middle = len(batches) // 2
    return batches[middle:] + batches[:middle]


def _floors(bench: _Bench, count: FlopCount) -> dict[str, Any]:
    """What no step can be faster than on this machine, from counts and two measurements."""
    device, steps = bench.world.device, len(bench.batches)
    peak, bandwidth = matmul_peak(device), memory_bandwidth(device)
    read_bytes = sum(num_bytes(batch) for batch in bench.batches)
    floors: dict[str, Any] = {
        "peak_flops_per_s": peak.flops_per_s,
        "peak_size": peak.size,
        "threads": peak.threads,
        "memory_bytes_per_s": bandwidth,
        "flops_per_row": bench.flops(count) / bench.num_rows,
        "embedding_bytes_per_row": count.embedding_bytes / bench.num_rows,
        "reader_bytes_per_row": read_bytes / bench.num_rows,
        "matmul_floor_s": bench.flops(count) / steps / peak.flops_per_s,
        "embedding_floor_s": EMBEDDING_PASSES * count.embedding_bytes / steps / bandwidth,
        "reader_floor_s": read_bytes / steps / bandwidth,
    }
    if device.type == "cuda":
        floors["bf16_flops_per_s"] = matmul_peak(device, torch.bfloat16).flops_per_s
    return floors


def _layouts(bench: _Bench) -> tuple[dict[str, Any], list[float]]:
    """Speedups of the layouts, and the seconds of all batches' steps in each round."""
    rounds, device = bench.size.rounds, bench.world.device
    majors = {
        "impression-major": bench.steps([impression_major(batch) for batch in bench.batches[:1]]),
        "request-major": bench.steps(bench.batches[:1]),
        "all": bench.steps(bench.batches),
    }
    seconds = interleaved(majors, rounds=rounds, device=device)
    found: dict[str, Any] = {
        "request_major_over_impression_major": asdict(
            speedup(seconds["impression-major"], seconds["request-major"]),
        )
    }
    lengths = torch.from_numpy(_lengths(bench.batches))[:: max(1, len(bench.batches) // 2)]
    config = bench.job.config.model
    if int(lengths.max()) > 0 and device.type == "cpu":
        spread = lengths[torch.linspace(0, len(lengths) - 1, min(MOST_PADDED_REQUESTS, len(lengths))).long()]
        variants = encoder_variants(spread, width=config.width, heads=config.heads)
        encoder = interleaved(variants, rounds=rounds, device=device)
        found["history"] = {"mean": float(spread.float().mean()), "longest": int(spread.max())}
        found["jagged_over_padded"] = asdict(speedup(encoder["padded"], encoder["jagged"]))
        found["jagged_over_padded_our_kernel"] = asdict(speedup(encoder["padded, our kernel"], encoder["jagged"]))
    return found, seconds["all"]


def _lengths(batches: list[RequestBatch]) -> Int64Array:
    """Events of each request in the log that has most."""
    most = max(batches[0].histories, key=lambda log: sum(len(batch.histories[log].times) for batch in batches))
    return np.concatenate([np.diff(batch.histories[most].offsets) for batch in batches])


def _step(bench: _Bench, count: FlopCount, peak: float, *, seconds: list[float]) -> dict[str, Any]:
    """A step as a whole, and split by what its time went to."""
    rows, events = bench.num_rows, sum(batch.num_events for batch in bench.batches)
    per_pass = Measured.of(seconds)
    called = calls_of(bench.model, lambda: bench.trainer.score(to_tensors(bench.batches[0], bench.world.device)))
    parts = parts_of(bench.model, called)
    clock = StepClock(bench.model, bench.trainer.dense_optimizer, parts + around(parts, called))
    with clock.running():
        for batch in bench.batches:
            prepared = bench.trainer.prepare(to_tensors(batch, bench.world.device))
            bench.trainer.step(prepared, clock.timed_loss(bench.loss_of(batch)))
    total = sum(clock.seconds.values())
    return {
        "seconds": per_pass.median / len(bench.batches),
        "rows_per_s": asdict(Measured.of([rows / taken for taken in seconds])),
        "events_per_s": events / per_pass.median,
        "useful_flops": bench.flops(count) / len(bench.batches),
        "e2e_mfu": bench.flops(count) / per_pass.median / peak,
        "split": {name: taken / total for name, taken in sorted(clock.seconds.items(), key=lambda item: -item[1])},
        "peak_memory_bytes": _peak_memory(bench.world.device),
    }


def _parts_alone(bench: _Bench, count: FlopCount, peak: float) -> tuple[dict[str, Any], float]:
    """Each part with its inputs of the first batch, forward and backward; and their mean MFU, weighted by FLOPs.

    `count` is the first batch's.
    """
    calls, modules, flops = _calls(bench), dict(bench.model.named_modules()), count.by_part
    runs = {
        name: forward_and_backward(modules[name], calls[name])
        for name in parts_of(bench.model, calls)
        if flops.get(name, 0) > 0
    }
    times = interleaved(runs, rounds=max(2, bench.size.rounds // 2), device=bench.world.device)
    found: dict[str, Any] = {}
    for name, taken in times.items():
        needed = FORWARD_AND_BACKWARD * flops[name]
        seconds = Measured.of(taken).median
        found[name] = {"flops_share": flops[name] / count.total, "seconds": seconds, "mfu": needed / seconds / peak}
    weight = sum(part["flops_share"] for part in found.values())
    return found, sum(part["flops_share"] * part["mfu"] for part in found.values()) / weight


def _calls(bench: _Bench) -> dict[str, Call]:
    """What every module is called with for the first batch."""
    return calls_of(bench.model, lambda: bench.model.of_batch(to_tensors(bench.batches[0], bench.world.device)))


def _reader_alone(bench: _Bench, *, model_rows_per_s: float) -> dict[str, Any]:
    """Rows a second of a reader that nobody waits for, in the caller's thread."""
    requests = bench.job.config.training.batch_requests
    first = max(0, (len(bench.positions) - READ_BATCHES * requests) // 2)
    positions = bench.positions[first : first + READ_BATCHES * requests]
    rates: list[float] = []
    for _ in range(min(3, bench.size.rounds)):
        started = time.perf_counter()
        with Reader(bench.store, bench.job.schema, positions, requests, prefetch=0) as reader:
            rows = sum(batch.num_candidates for batch in reader)
        rates.append(rows / (time.perf_counter() - started))
    measured = Measured.of(rates)
    return {"rows_per_s": asdict(measured), "times_faster_than_model": measured.median / model_rows_per_s}


def _compiled(bench: _Bench, parts: dict[str, Any]) -> dict[str, Any]:
    """`torch.compile` of the parts whose inputs are tensors alone and that have a notable share of the FLOPs."""
    calls, modules = _calls(bench), dict(bench.model.named_modules())
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if part["flops_share"] < LEAST_SHARE or not _only_tensors(calls[name]):
            continue
        module = modules[name]
        started = time.perf_counter()
        try:
            variants = {
                "eager": forward_and_backward(module, calls[name]),
                "compiled": forward_and_backward(module, calls[name], compiled=True),
            }
            seconds = interleaved(variants, rounds=bench.size.rounds, device=bench.world.device)
        except RuntimeError as error:  # no compiler, or an operator that it does not know
            found[name] = {"failed": str(error).strip().splitlines()[0]}
            continue
        finally:
            torch.compiler.reset()
        found[name] = {
            "speedup": asdict(speedup(seconds["eager"], seconds["compiled"])),
            "seconds_to_compile_and_measure": time.perf_counter() - started,
        }
    return found


def _only_tensors(call: Call) -> bool:
    return all(isinstance(value, Tensor) and value.is_floating_point() for value in (*call.args, *call.named.values()))


def _peak_memory(device: torch.device) -> int:
    """Most bytes that this process has had: of the GPU where it uses one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
