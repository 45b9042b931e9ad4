"""The soft-label loss against its formula, and the gradient that reaches the backbone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transfer.losses import distillation_loss, scale_gradient

DRAW = np.random.default_rng(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_formula(auxiliary, teacher, label_scale):
    """Sum over objectives of the mean over scored rows of -t log p - (1 - t) log(1 - p), t = min(alpha p_F, 1)."""
    total = 0.0
    for mine, theirs in zip(auxiliary.T, teacher.T, strict=True):
        scored = ~np.isnan(theirs)
        target = np.minimum(label_scale * sigmoid(theirs[scored]), 1.0)
        p = sigmoid(mine[scored])
        losses = -target * np.log(p) - (1 - target) * np.log(1 - p)
        total += losses.mean() if scored.any() else 0.0
    return total


@given(
    st.integers(1, 6).flatmap(
        lambda rows: st.lists(
            st.lists(st.one_of(st.floats(-8, 8), st.just(float("nan"))), min_size=2, max_size=2),
            min_size=rows,
            max_size=rows,
        )
    ),
    st.floats(1, 5),
)
def test_the_loss_is_the_formula(teacher, label_scale):
    teacher = np.array(teacher)
    auxiliary = DRAW.normal(size=teacher.shape)
    loss = distillation_loss(torch.tensor(auxiliary), torch.tensor(teacher), label_scale=label_scale)
    assert loss.item() == pytest.approx(by_formula(auxiliary, teacher, label_scale), abs=1e-12)


def test_the_gradient_is_right_where_the_teacher_scored_and_zero_elsewhere():
    auxiliary = torch.tensor(DRAW.normal(size=(5, 2)), requires_grad=True)
    teacher = torch.tensor(DRAW.normal(size=(5, 2)))
    teacher[1, 0] = teacher[3] = torch.nan
    assert torch.autograd.gradcheck(lambda x: distillation_loss(x, teacher, label_scale=1.5), auxiliary)
    distillation_loss(auxiliary, teacher, label_scale=1.5).backward()
    assert torch.equal(auxiliary.grad != 0, teacher.isfinite())


def test_no_scores_no_loss_and_a_gradient_all_the_same():
    auxiliary = torch.ones(3, 2, requires_grad=True)
    loss = distillation_loss(auxiliary, torch.full((3, 2), torch.nan), label_scale=1.0)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(auxiliary.grad, torch.zeros(3, 2))


@pytest.mark.parametrize("teacher", [0.0, 3.0, 50.0])
def test_a_scaled_label_never_exceeds_one(teacher):
    auxiliary = torch.tensor([[0.7]], dtype=torch.float64)
    loss = distillation_loss(auxiliary, torch.tensor([[teacher]], dtype=torch.float64), label_scale=4.0)
    assert loss.item() == pytest.approx(-np.log(sigmoid(0.7)), abs=1e-12), "4 sigmoid(0) is 2, clipped to 1"


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 20.0])
def test_scale_gradient_changes_nothing_but_the_gradient(scale):
    x = torch.tensor(DRAW.normal(size=(4, 3)), requires_grad=True)
    assert torch.equal(scale_gradient(x, scale), x)
    weights = torch.tensor(DRAW.normal(size=(4, 3)))
    (plain,) = torch.autograd.grad((x.sin() * weights).sum(), x)
    (scaled,) = torch.autograd.grad((scale_gradient(x, scale).sin() * weights).sum(), x)
    assert torch.equal(scaled, plain * scale)
