"""Losses of the soft-label channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foundation.training.loss import masked_cross_entropy


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.scale, None


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """`x` unchanged; its gradient times `scale`.

    Source: ExFM (arXiv 2502.17494), gradient scaling of the distillation branch.
    """
    scaled: Tensor = _ScaledGradient.apply(x, scale)
    return scaled


def distillation_loss(auxiliary: Tensor, teacher: Tensor, *, label_scale: float) -> Tensor:
    """Cross entropy of the auxiliary head against `min(label_scale * sigmoid(teacher), 1)`.

    Needs no hard label: a row whose label is unknown still distils.

    Args:
        auxiliary: [N, K] logits of the auxiliary head.
        teacher: [N, K] logits, NaN where the teacher did not score.
        label_scale: at least 1.

    Returns:
        A scalar in nats: the sum over objectives of the mean over scored rows; 0 if none was scored.

    Source: ExFM (arXiv 2502.17494), auxiliary head with label scaling.
    """
    soft = (torch.sigmoid(teacher) * label_scale).clamp(max=1.0)
    return masked_cross_entropy(auxiliary, soft, auxiliary.new_ones(auxiliary.shape[1]))
