"""The GPU check's attention: our kernel against its formula in float64, and beside padded plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import (
    CHECKED,
    FORWARD_AND_BACKWARD,
    TF32,
    Check,
    Run,
    Size,
    Timed,
    drawn_lengths,
    offsets_of,
    products_as,
    relative_error,
    time_runs,
)
from foundation.kernels.activation import ACTIVATIONS, Activation, Pointwise
from foundation.model.gdpa import gdpa, pointwise

TOLERANCES = {"float64": 1e-10, "float32": 2e-5, TF32: 5e-3, "bfloat16": 2e-2}
"""Sums in another order; and what is left of a product of numbers of 11 and of 8 bits."""

WINDOW = 9

PLAIN: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x) ** 2,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "hardswish": functional.hardswish,
}


def reference(q: Tensor, k: Tensor, v: Tensor, offsets: tuple[Tensor, Tensor], form: Pointwise) -> Tensor:
    """What `gdpa` is by its formula, request by request."""
    parts: list[Tensor] = []
    queries, keys = (pairwise(each.tolist()) for each in offsets)
    for (first, last), (begin, end) in zip(queries, keys, strict=True):
        scores = form.scale_in * torch.einsum("qhd,khd->hqk", q[first:last], k[begin:end])
        weights = form.scale_out * PLAIN[form.activation](scores)
        if form.window is not None:
            apart = torch.arange(last - first)[:, None] - torch.arange(end - begin)[None, :]
            weights = weights * (apart.abs() <= form.window)
        parts.append(torch.einsum("hqk,khe->qhe", weights, v[begin:end]))
    return torch.cat(parts)


def check_attention(device: torch.device, kinds: Sequence[str]) -> list[Check]:
    """Every activation in float32, every kind of number with SiLU; a history over itself, in a window, candidates."""
    cases = [("events", "float32", Pointwise(name, 0.3, 0.05)) for name in ACTIVATIONS]
    cases += [("events", kind, Pointwise("silu", 0.3, 0.05)) for kind in kinds if kind != "float32"]
    cases += [("events", "float32", Pointwise("silu", 0.3, 0.05, window=WINDOW))]
    cases += [("candidates", kind, Pointwise("silu", 0.3, 0.05)) for kind in kinds]
    found = [_check(device, of, kind, form) for of, kind, form in cases]
    twice = Check("attention, all of these: numbers that differ the second time", sum(n for _, n in found), 0)
    return [*(check for check, _ in found), twice]


def _check(device: torch.device, of: str, kind: str, form: Pointwise) -> tuple[Check, int]:
    """Output and gradients against float64 of the very same numbers; and how many differ in a second run."""
    keys, width = offsets_of(drawn_lengths(CHECKED, 1)), CHECKED.width // CHECKED.heads
    of_candidates = offsets_of(torch.full((CHECKED.requests,), CHECKED.candidates))
    offsets = (keys if of == "events" else of_candidates, keys)
    rows = [int(offset[-1]) for offset in (*offsets, keys, offsets[0])]
    generator = torch.Generator().manual_seed(0)
    with products_as(kind) as dtype:
        q, k, v, gradient = (torch.randn(n, CHECKED.heads, width, generator=generator).to(dtype) for n in rows)
        doubled = [x.double() for x in (q, k, v, gradient)]
        expected = _with_gradients(lambda q, k, v: reference(q, k, v, offsets, form), doubled)
        moved = [x.to(device) for x in (q, k, v, gradient)]
        ends = [offset.to(device) for offset in offsets]
        once, again = (_with_gradients(lambda q, k, v: gdpa(q, k, v, *ends, form=form), moved) for _ in range(2))
    differing = sum(int((a != b).sum()) for a, b in zip(once, again, strict=True))
    window = "" if form.window is None else f", window {form.window}"
    name = f"attention of {of} over events, {form.activation}{window}, {kind}"
    return Check(name, relative_error(once, expected), TOLERANCES[kind]), differing


def _with_gradients(attend: Callable[[Tensor, Tensor, Tensor], Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    *rows, gradient = tensors
    q, k, v = (tensor.detach().clone().requires_grad_() for tensor in rows)
    out = attend(q, k, v)
    return [out, *torch.autograd.grad(out, (q, k, v), gradient)]


def padded_attention(rows: Sequence[Tensor], there: Tensor, form: Pointwise) -> Tensor:
    """[B, L, H, d] each, SiLU: what one writes for rectangles without a kernel of one's own."""
    q, k, v = rows
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * form.scale_in
    weights = functional.silu(scores) * form.scale_out * there[:, None, None, :]
    return torch.einsum("bhqk,bkhe->bqhe", weights, v)


def time_attention(device: torch.device, size: Size, peaks: dict[str, float]) -> list[Timed]:
    """Histories over themselves, forward and backward: ours without padding, plain torch padded to the longest."""
    lengths, width = drawn_lengths(size, 2), size.width // size.heads
    offsets, form = offsets_of(lengths).to(device), pointwise(width, size.longest)
    there = (torch.arange(size.longest) < lengths[:, None]).to(device)
    flops = FORWARD_AND_BACKWARD * 4.0 * size.width * float((lengths.double() ** 2).sum())
    found: list[Timed] = []
    for kind, peak in peaks.items():
        with products_as(kind) as dtype:
            shape = (size.requests, size.longest, size.heads, width)
            padded = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(3)]
            jagged = [x.detach()[there].requires_grad_() for x in padded]

            def ours(x: list[Tensor] = jagged) -> None:
                torch.autograd.grad(gdpa(x[0], x[1], x[2], offsets, offsets, form=form).sum(), x)

            def plain(x: list[Tensor] = padded) -> None:
                torch.autograd.grad(padded_attention(x, there, form).sum(), x)

            runs = {"attention": ours, "attention padded, plain torch": plain}
            named = {f"{name}, {kind}": Run(call, flops, peak) for name, call in runs.items()}
            found += time_runs(named, device, size.rounds)
    return found
