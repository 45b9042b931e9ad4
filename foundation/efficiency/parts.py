"""Where a step's time goes: by part within the step, and of each part by itself."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from foundation.efficiency.timing import now
from foundation.model.embedding import TokenEmbedding

LEVELS = 2


@dataclass(frozen=True, slots=True)
class Call:
    """What a module was called with."""

    args: tuple[Any, ...]
    named: dict[str, Any]


def calls_of(model: nn.Module, forward: Callable[[], object]) -> dict[str, Call]:
    """The last call of every module that is called during a forward pass, by name."""
    calls: dict[str, Call] = {}
    hooks = [
        module.register_forward_pre_hook(_recorder(calls, name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    forward()
    for hook in hooks:
        hook.remove()
    return calls


def parts_of(model: nn.Module, called: Iterable[str]) -> list[str]:
    """The model's parts by name, none inside another: modules that are called, two levels of such below the model.

    Lists of modules are no level. Embeddings are no parts: they cost bytes, not FLOPs.
    """
    return _parts(model, "", set(called), LEVELS)


def around(parts: Iterable[str], called: Iterable[str]) -> list[str]:
    """The modules that are called and call parts.

    Example:
        >>> around(["a.b.0", "a.c", "d"], ["", "a", "a.b.0", "a.c", "d"])
        ['a']
    """
    return sorted({name for name in called for part in parts if name and part.startswith(f"{name}.")})


def forward_and_backward(module: nn.Module, call: Call, *, compiled: bool = False) -> Callable[[], None]:
    """A part alone, as often as one likes: its forward and backward pass with the inputs of a call.

    It is a copy, so that no hook of a model that is spread over ranks sees its gradients.
    """
    args, named = _detached(call.args), _detached(call.named)
    alone = copy.deepcopy(module)
    parameters = list(alone.parameters())
    forward = torch.compile(alone, dynamic=True) if compiled else alone

    def run() -> None:
        outputs = [out for out in _tensors(forward(*args, **named)) if out.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(out) for out in outputs])
        for leaf in (*parameters, *_tensors((args, named))):
            leaf.grad = None

    return run


class StepClock:
    """Seconds of a trainer's steps by what they were spent on, without the times of what is inside.

    Names are those of the given modules; besides the embeddings', `model (the rest)`, `loss`,
    `backward, tables, clipping` and `dense optimizer`.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, names: list[str]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._model, self._optimizer, self._names = model, optimizer, names
        self._device = next(model.parameters()).device
        self._open: list[tuple[str, float, float]] = []
        self._outermost: set[str] = set()
        self._marked = 0.0

    def timed_loss(self, loss_of: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
        """The loss, timed; what comes after it until the optimizer's step is the backward pass."""

        def run(outputs: Any) -> Tensor:
            started = now(self._device)
            loss = loss_of(outputs)
            self._marked = now(self._device)
            self.seconds["loss"] += self._marked - started
            return loss

        return run

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the steps that are taken inside."""
        modules = dict(self._model.named_modules())
        named = {name: module for name, module in modules.items() if isinstance(module, TokenEmbedding)}
        self._outermost = {*named, "model (the rest)"}
        named |= {name: modules[name] for name in self._names} | {"model (the rest)": self._model}
        hooks: list[Any] = []
        for name, module in named.items():
            hooks.append(module.register_forward_pre_hook(lambda *_, n=name: self._enter(n)))
            hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        hooks.append(self._optimizer.register_step_pre_hook(lambda *_: self._mark("backward, tables, clipping")))
        hooks.append(self._optimizer.register_step_post_hook(lambda *_: self._mark("dense optimizer")))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _mark(self, name: str) -> None:
        moment = now(self._device)
        self.seconds[name] += moment - self._marked
        self._marked = moment

    def _enter(self, name: str) -> None:
        if self._open or name in self._outermost:  # what is computed again in the backward pass belongs to that
            self._open.append((name, now(self._device), 0.0))

    def _leave(self) -> None:
        if not self._open:
            return
        name, started, inside = self._open.pop()
        elapsed = now(self._device) - started
        self.seconds[name] += elapsed - inside
        if self._open:
            outer, when, so_far = self._open[-1]
            self._open[-1] = outer, when, so_far + elapsed


def _recorder(calls: dict[str, Call], name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def note(_module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[name] = Call(args, named)

    return note


def _parts(module: nn.Module, path: str, called: set[str], levels: int) -> list[str]:
    found: list[str] = []
    for name, child in module.named_children():
        if isinstance(child, TokenEmbedding):
            continue
        place = f"{path}.{name}" if path else name
        inside = _parts(child, place, called, levels - (place in called)) if levels > (place in called) else []
        found += inside or ([place] if place in called else [])
    return found


def _detached(value: Any) -> Any:
    """The same structure with tensors cut from the graph; floating-point ones are leaves that want a gradient."""
    match value:
        case Tensor():
            return value.detach().clone().requires_grad_(value.is_floating_point())
        case list() | tuple():
            return type(value)(_detached(part) for part in value)
        case dict():
            return {name: _detached(part) for name, part in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return replace(
                value, **{field.name: _detached(getattr(value, field.name)) for field in fields(value) if field.init}
            )
        case _:
            return value


def _tensors(value: Any) -> list[Tensor]:
    match value:
        case Tensor():
            return [value]
        case list() | tuple():
            return [tensor for part in value for tensor in _tensors(part)]
        case dict():
            return [tensor for part in value.values() for tensor in _tensors(part)]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return [tensor for field in fields(value) for tensor in _tensors(getattr(value, field.name))]
        case _:
            return []
