"""Why the teacher's labels go to a head of their own: a teacher off by a constant must not move what is served."""

import numpy as np
import pytest
import torch
from torch import nn

from foundation.training.loss import masked_cross_entropy
from transfer.losses import distillation_loss, scale_gradient

NUM_ROWS, NUM_STEPS, SHIFT = 2048, 200, 1.0


def calibration(*, shift, one_head, seed):
    """Mean predicted over mean actual of a small student that has learned from a teacher off by `shift` logits."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(NUM_ROWS, 6, generator=draw)
    truth = (x @ torch.randn(6, generator=draw) - 1.5)[:, None]
    labels = (torch.rand(NUM_ROWS, 1, generator=draw) < torch.sigmoid(truth)).float()
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
    head, auxiliary = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters(), *auxiliary.parameters()], lr=0.01)
    for _ in range(NUM_STEPS):
        features = backbone(x)
        taught = head(features) if one_head else auxiliary(scale_gradient(features, 1.0))
        loss = masked_cross_entropy(head(features), labels, torch.ones(1))
        loss = loss + distillation_loss(taught, truth + shift, label_scale=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return (torch.sigmoid(head(backbone(x))).sum() / labels.sum()).item()


@pytest.fixture(scope="module")
def calibrations():
    return {
        (shift, one_head): np.array([calibration(shift=shift, one_head=one_head, seed=seed) for seed in range(3)])
        for shift, one_head in [(0.0, False), (SHIFT, False), (SHIFT, True)]
    }


def test_a_shifted_teacher_leaves_the_served_head_calibrated(calibrations):
    assert np.abs(calibrations[SHIFT, False] - 1).max() < 0.02
    assert np.abs(calibrations[SHIFT, False] - calibrations[0.0, False]).max() < 0.02


def test_with_one_head_it_moves_what_is_served(calibrations):
    assert calibrations[SHIFT, True].min() > 1.1
