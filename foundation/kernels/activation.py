"""Attention without a softmax: its form, and the activations; all are 0 at 0, so padding and windows need no mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

Activation = Literal["identity", "relu", "relu2", "silu", "gelu", "hardswish"]
ACTIVATIONS: tuple[Activation, ...] = ("identity", "relu", "relu2", "silu", "gelu", "hardswish")


@dataclass(frozen=True, slots=True)
class Pointwise:
    """`act(scale_in · q kᵀ) · scale_out · v`.

    Attributes:
        activation: in place of a softmax.
        scale_in: before the activation.
        scale_out: after the activation; constants of the model both, never the length of a row.
        window: of self-attention: only keys at most so many places from the query, 0 or more; None: all keys.
    """

    activation: Activation = "silu"
    scale_in: float = 1.0
    scale_out: float = 1.0
    window: int | None = None


def activate_(scores: Tensor, activation: Activation) -> Tensor:
    """`act(scores)`, in place.

    Args:
        scores: any shape, floating point.
        activation: `relu2` is `max(x, 0)²`, `gelu` the exact one, `hardswish` `x · clip(x + 3, 0, 6) / 6`.

    Example:
        >>> activate_(torch.tensor([-2.0, 0.0, 3.0]), "relu2").tolist()
        [0.0, 0.0, 9.0]
    """
    match activation:
        case "identity":
            return scores
        case "relu":
            return scores.relu_()
        case "relu2":
            return scores.relu_().square_()
        case "silu":
            return torch.ops.aten.silu_(scores)
        case "gelu":
            return torch.ops.aten.gelu_(scores)
        case "hardswish":
            return torch.ops.aten.hardswish_(scores)
        case _:
            assert_never(activation)


def pull_back_(gradient: Tensor, scores: Tensor, activation: Activation) -> Tensor:
    """`gradient · act'(scores)`, in place of the gradient; the scores stay as they are.

    Example:
        >>> pull_back_(torch.ones(3), torch.tensor([-2.0, 0.0, 3.0]), "relu2").tolist()
        [0.0, 0.0, 6.0]
    """
    aten = torch.ops.aten
    match activation:
        case "identity":
            return gradient
        case "relu":
            return aten.threshold_backward.grad_input(gradient, scores, 0, grad_input=gradient)
        case "relu2":
            return gradient.mul_(scores.relu()).mul_(2)
        case "silu":
            return aten.silu_backward.grad_input(gradient, scores, grad_input=gradient)
        case "gelu":
            return aten.gelu_backward.grad_input(gradient, scores, grad_input=gradient)
        case "hardswish":
            return aten.hardswish_backward.out(gradient, scores, out=gradient)
        case _:
            assert_never(activation)
