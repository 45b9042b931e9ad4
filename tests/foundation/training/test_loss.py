import math

import pytest
import torch

from foundation.training.loss import masked_cross_entropy

NAN = math.nan


def cross_entropy(logit, label):
    probability = 1 / (1 + math.exp(-logit))
    return -label * math.log(probability) - (1 - label) * math.log(1 - probability)


def loss_of(logits, labels, weights):
    return masked_cross_entropy(
        torch.tensor(logits, dtype=torch.float64),
        torch.tensor(labels, dtype=torch.float64),
        torch.tensor(weights, dtype=torch.float64),
    ).item()


def test_the_loss_is_the_weighted_sum_of_each_objectives_mean_over_its_known_rows():
    logits = [[0.3, NAN], [-1.2, 2.0], [0.7, -0.4], [1.5, 0.1]]
    labels = [[1.0, 1.0], [0.0, 1.0], [NAN, 0.25], [NAN, NAN]]
    click = (cross_entropy(0.3, 1) + cross_entropy(-1.2, 0)) / 2
    buy = (cross_entropy(2.0, 1) + cross_entropy(-0.4, 0.25)) / 2
    assert loss_of(logits, labels, [1.0, 3.0]) == pytest.approx(click + 3 * buy, rel=1e-14)


def test_order_and_unknown_rows_do_not_matter():
    logits, labels = [[0.3], [-1.2]], [[1.0], [0.0]]
    expected = loss_of(logits, labels, [1.0])
    assert loss_of(logits[::-1], labels[::-1], [1.0]) == pytest.approx(expected, rel=1e-14)
    assert loss_of([*logits, [9.0], [NAN]], [*labels, [NAN], [1.0]], [1.0]) == expected


@pytest.mark.parametrize(("logit", "label"), [(1e4, 0.0), (-1e4, 1.0)])
def test_a_logit_of_any_size_costs_its_size(logit, label):
    assert loss_of([[logit]], [[label]], [1.0]) == 1e4


def test_a_weight_of_zero_takes_an_objective_out():
    assert loss_of([[1.0, 5.0]], [[1.0, 0.0]], [1.0, 0.0]) == pytest.approx(cross_entropy(1.0, 1), rel=1e-14)


@pytest.mark.parametrize(
    ("logits", "labels"), [([[0.5, NAN]], [[NAN, 1.0]]), ([[0.5, 0.5]], [[NAN, NAN]]), ([[NAN, NAN]], [[1.0, 0.0]])]
)
def test_nothing_known_costs_nothing_and_teaches_nothing(logits, labels):
    logits = torch.tensor(logits, requires_grad=True)
    loss = masked_cross_entropy(logits, torch.tensor(labels), torch.ones(2))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.eq(0).all()


def test_no_rows_at_all_cost_nothing():
    logits = torch.zeros(0, 2, requires_grad=True)
    loss = masked_cross_entropy(logits, torch.zeros(0, 2), torch.ones(2))
    loss.backward()
    assert loss.item() == 0


def test_uncertainty_divides_a_loss_and_costs_its_logarithm_where_a_label_is_known():
    logits, labels = torch.tensor([[0.3, NAN, 2.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    uncertainties = torch.tensor([0.4, 5.0, -0.7], requires_grad=True)
    loss = masked_cross_entropy(logits, labels, torch.tensor([1.0, 1.0, 3.0]), log_variances=uncertainties)
    click, buy = cross_entropy(0.3, 1), cross_entropy(2.0, 0)
    expected = math.exp(-0.4) * click + 0.2 + 3 * (math.exp(0.7) * buy - 0.35)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    loss.backward()
    slopes = [0.5 - math.exp(-0.4) * click, 0, 3 * (0.5 - math.exp(0.7) * buy)]
    assert uncertainties.grad.tolist() == pytest.approx(slopes, rel=1e-5)


def test_no_uncertainty_is_better_than_twice_the_loss():
    best = math.log(2 * cross_entropy(0.3, 1))
    costs = [
        masked_cross_entropy(torch.tensor([[0.3]]), torch.ones(1, 1), torch.ones(1), log_variances=torch.tensor([s]))
        for s in (best - 0.1, best, best + 0.1)
    ]
    assert costs[1] < min(costs[0], costs[2])


def test_the_gradient_is_that_of_finite_differences():
    logits = torch.tensor([[0.3, -0.2], [-1.2, 2.0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1.0, NAN], [0.3, 0.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: masked_cross_entropy(z, labels, weights), (logits,))
