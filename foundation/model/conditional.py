"""Objectives that are conditional on another: a product of probabilities, composed of logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foundation.data.schema import Schema

Products = tuple[tuple[int, int], ...]
"""(place of an objective, place of what it is given), those that others are given first."""


def products_of(schema: Schema, objectives: Sequence[str]) -> Products:
    """Which of these objectives are a product with another of them.

    One whose given objective is not among them has no factor to be multiplied with: its own logit is the whole.
    """
    places = {name: place for place, name in enumerate(objectives)}
    given = {name: schema.objectives[name].given for name in objectives}
    chosen = {
        name: other
        for name, other in given.items()
        if other in places and schema.objectives[name].conditional == "product"
    }

    def depth(name: str) -> int:
        steps = 0
        while name in chosen and steps <= len(chosen):
            name, steps = chosen[name], steps + 1
        return steps

    return tuple((places[name], places[chosen[name]]) for name in sorted(chosen, key=depth))


def compose(logits: Tensor, products: Products) -> Tensor:
    """Log odds of every objective, [C, K], of what the heads say.

    A product's own logit b is of P(objective | given); with log odds a of the given objective, the product p q of
    sigmoids has the odds 1 / (exp(-a) + exp(-b) + exp(-a - b)), whose logarithm is finite wherever a and b are.

    Example:
        >>> both = compose(torch.zeros(1, 2), ((1, 0),))
        >>> torch.sigmoid(both).tolist()
        [[0.5, 0.25]]

    Source: ESMM (arXiv 1804.07931), the product; ours, the form in log odds.
    """
    if not products:
        return logits
    columns = list(logits.unbind(1))
    for place, given in products:
        a, b = columns[given], columns[place]
        columns[place] = -torch.logsumexp(torch.stack([-a, -b, -a - b], dim=1), dim=1)
    return torch.stack(columns, dim=1)
