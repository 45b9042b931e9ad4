"""Products of probabilities, in log odds."""

import math
from decimal import Decimal, localcontext

import pytest
import torch

from foundation.data.schema import Objective
from foundation.model.conditional import compose, products_of
from foundation.model.heads import SurfaceObjectiveHeads

VIEW, BUY, AGAIN = 0, 1, 2


def log_odds_of_product(*logits):
    """log(p / (1 - p)) of the product of sigmoids, in 400 digits."""
    with localcontext(prec=400):
        product = Decimal(1)
        for logit in logits:
            product /= 1 + (-Decimal(logit)).exp()
        return float((product / (1 - product)).ln())


@pytest.mark.parametrize("a", [-400.0, -30.0, -1.5, 0.0, 2.0, 35.0, 400.0])
@pytest.mark.parametrize("b", [-400.0, -30.0, -0.5, 0.0, 3.0, 35.0, 400.0])
def test_the_log_odds_are_those_of_the_product_however_small_or_large(a, b):
    (logits,) = compose(torch.tensor([[a, b]], dtype=torch.float64), ((BUY, VIEW),)).tolist()
    assert logits[VIEW] == a
    assert logits[BUY] == pytest.approx(log_odds_of_product(a, b), rel=1e-12, abs=1e-12)
    (in_float32,) = compose(torch.tensor([[a, b]]), ((BUY, VIEW),)).tolist()
    assert in_float32[BUY] == pytest.approx(logits[BUY], rel=1e-5, abs=1e-6)


def test_a_chain_is_the_product_of_all_its_parts():
    logits = torch.tensor([[0.3, -1.2, 0.8]], dtype=torch.float64)
    composed = compose(logits, ((BUY, VIEW), (AGAIN, BUY)))
    assert composed[0, BUY].item() == pytest.approx(log_odds_of_product(0.3, -1.2), rel=1e-12)
    assert composed[0, AGAIN].item() == pytest.approx(log_odds_of_product(0.3, -1.2, 0.8), rel=1e-12)


def test_the_gradient_is_that_of_finite_differences():
    logits = torch.tensor([[0.3, -1.2, 0.8], [5.0, -6.0, 0.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: compose(z, ((BUY, VIEW), (AGAIN, BUY))), (logits,))


@pytest.fixture
def chained(schema):
    """`again` given `buy` given `view`, written in the opposite order."""
    objectives = {"again": Objective(given="buy"), "buy": Objective(given="view"), "view": Objective()}
    return schema.model_copy(update={"objectives": objectives})


def test_what_others_are_given_is_composed_first(chained):
    assert products_of(chained, ("again", "buy", "view")) == ((1, 2), (0, 1))


def test_without_what_it_is_given_an_objective_stands_for_itself(chained):
    assert products_of(chained, ("again", "view")) == ()
    assert products_of(chained, ("view", "buy")) == ((1, 0),)


def test_a_masked_objective_is_no_product(schema):
    objectives = {"view": Objective(), "buy": Objective(given="view", conditional="masked")}
    assert products_of(schema.model_copy(update={"objectives": objectives}), ("view", "buy")) == ()


def test_heads_say_the_product_and_nothing_where_there_is_no_pair(schema):
    objectives = {"view": Objective(), "buy": Objective(given="view", surfaces=("search",))}
    heads = SurfaceObjectiveHeads(schema.model_copy(update={"objectives": objectives}), 4)
    heads.start_at(torch.tensor([-1.0, -2.0]))
    trunk = torch.zeros(2, 4, requires_grad=True)
    logits = heads(trunk, torch.tensor([0, 1]))
    assert logits[:, VIEW].tolist() == [-1.0, -1.0]
    assert math.isnan(logits[0, BUY].item())
    assert logits[1, BUY].item() == pytest.approx(log_odds_of_product(-1.0, -2.0), rel=1e-6)
    logits.nansum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in heads.parameters())
