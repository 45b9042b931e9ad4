"""Wukong: stacked factorisation machines over tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WukongLayer(nn.Module):
    """`X' = LN([FMB(X); LCB(X)] + R X)`: n tokens in, `num_fm + num_linear` tokens out.

    FMB: `X (X^T Y)` with learned Y (n x k), flattened, normed, an MLP to `num_fm` tokens. LCB: tokens mixed linearly.
    R: tokens mixed linearly, since the counts differ. `Y^T X`, LCB and R are three maps of the same tokens, so they are
    one product; it is a batched one, since folding the batch into rows would copy X both ways.

    Source: Wukong (arXiv 2403.02545, section 3); Y learned rather than computed from X.
    """

    def __init__(self, num_tokens: int, width: int, *, num_fm: int, num_linear: int, rank: int, hidden: int) -> None:
        super().__init__()
        self.num_fm = num_fm
        self.projection = nn.Parameter(torch.randn(num_tokens, rank) * num_tokens**-0.5)
        self.fm = nn.Sequential(
            nn.LayerNorm(num_tokens * rank),
            nn.Linear(num_tokens * rank, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_fm * width),
        )
        self.mix = nn.Linear(num_tokens, num_linear, bias=False)
        self.residual = nn.Linear(num_tokens, num_fm + num_linear, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, n, D] → [N, num_fm + num_linear, D]."""
        num_linear, rank = self.mix.weight.shape[0], self.projection.shape[1]
        residual = self.residual.weight.split([self.num_fm, num_linear])
        maps = torch.cat([self.projection.t(), residual[0], residual[1] + self.mix.weight])
        projected, of_fm, linear = torch.bmm(maps.expand(len(x), -1, -1), x).split([rank, self.num_fm, num_linear], 1)
        products = x @ projected.transpose(1, 2)
        fm = self.fm(products.flatten(1)).unflatten(1, (self.num_fm, -1))
        return self.norm(torch.cat([fm + of_fm, linear], dim=1))
