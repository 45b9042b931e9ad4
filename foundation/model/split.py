"""The first dense layer of a ranker, its user's half computed once a request."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class SplitLinear(nn.Module):
    """`W [request ; candidate] + b` as `(W_r request + b) + W_c candidate`, the first part broadcast to candidates.

    Source: the identity of blocked matrix products; one `nn.Linear` holds both halves, so that it starts as one would.
    """

    def __init__(self, request_width: int, candidate_width: int, out: int, *, bias: bool = True) -> None:
        super().__init__()
        self.widths = [request_width, candidate_width]
        self.joined = nn.Linear(request_width + candidate_width, out, bias=bias)

    def forward(self, requests: Tensor, candidates: Tensor, owner: Tensor) -> Tensor:
        """[B, D_r], [C, D_c] and [C] request of each candidate → [C, out]."""
        of_request, of_candidate = self.joined.weight.split(self.widths, dim=1)
        shared = functional.linear(requests, of_request, self.joined.bias)
        return functional.linear(candidates, of_candidate) + shared.index_select(0, owner)
