"""The first dense layer of a ranker, its user's half computed once a request."""

from __future__ import annotations

from torch import Tensor, nn


class SplitLinear(nn.Module):
    """`W [candidate ; request] + b` as `W_c candidate + (W_r request + b)`, the second part broadcast to candidates.

    Source: the identity of blocked matrix products; one `nn.Linear` holds both halves, so that it starts as one would.
    """

    def __init__(self, candidate_width: int, request_width: int, out: int) -> None:
        super().__init__()
        self.widths = [candidate_width, request_width]
        self.joined = nn.Linear(candidate_width + request_width, out)

    def forward(self, candidates: Tensor, requests: Tensor, owner: Tensor) -> Tensor:
        """[C, D_c], [B, D_r] and [C] request of each candidate → [C, out]."""
        of_candidate, of_request = self.joined.weight.split(self.widths, dim=1)
        shared = requests @ of_request.t() + self.joined.bias
        return candidates @ of_candidate.t() + shared.index_select(0, owner)
