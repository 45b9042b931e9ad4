"""SumKronLinear: a linear map of a token matrix to another, far smaller than a dense one over all its entries."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SumKronLinear(nn.Module):
    """`Y = sum_i Z_i^T X W_i`: [S, D] tokens to [T, D], `k (S T + D^2)` parameters instead of `S D T D`.

    On `vec(X)` it is a sum of k Kronecker products. Terms start so that tokens of variance 1 come out with variance 1.

    Source: Kunlun (arXiv 2602.10016); k = 8 there.
    """

    def __init__(self, tokens_in: int, tokens_out: int, width: int, *, num_terms: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(num_terms, tokens_in, tokens_out) * (tokens_in * num_terms) ** -0.5)
        self.width = nn.Parameter(torch.randn(num_terms, width, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D] → [B, T, D]: the k token maps in one product, then the k width maps summed by one product."""
        num_terms, _, tokens_out = self.tokens.shape
        mixed = self.tokens.permute(2, 0, 1).flatten(0, 1) @ x  # [B, T * k, D]
        return mixed.unflatten(1, (tokens_out, num_terms)).flatten(2) @ self.width.flatten(0, 1)
