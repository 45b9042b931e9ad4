"""Several batches make one step of the dense part, from the mean of their gradients."""

from dataclasses import replace

import pytest
import torch

from foundation.model.dcnv2 import Dcnv2Model
from foundation.training.loss import masked_cross_entropy
from foundation.training.trainer import Trainer
from tests.foundation.model.drawing import RATES, assert_same

STILL = replace(RATES, table_learning_rate=1e-30, gradient_clip=1e9)


@pytest.fixture
def trainer_with(schema, config, world):
    def make(accumulate):
        torch.manual_seed(0)
        return Trainer(Dcnv2Model(schema, config), world, replace(STILL, accumulate=accumulate))

    return make


@pytest.fixture
def batches(request_of, batched):
    return [batched([request_of(seed, 3, 2, num_candidates=4), request_of(seed + 9, 1, 0)]) for seed in range(3)]


def learn(trainer, batch):
    trainer.step(trainer.prepare(batch), lambda out: masked_cross_entropy(out, batch.labels, torch.ones(2)))


def gradients(trainer, batch):
    """Of the dense parameters as they are."""
    loss = masked_cross_entropy(trainer.sharded.model.of_batch(batch), batch.labels, torch.ones(2))
    return torch.autograd.grad(loss, trainer.dense, allow_unused=True)


def test_a_step_takes_the_mean_of_the_gradients(trainer_with, batches):
    accumulating, reference = trainer_with(3), trainer_with(1)
    before = [parameter.detach().clone() for parameter in accumulating.dense]
    parts = [gradients(reference, batch) for batch in batches]
    for batch in batches:
        assert all(torch.equal(p, old) for p, old in zip(accumulating.dense, before, strict=True))
        learn(accumulating, batch)
    assert accumulating.is_between_steps
    for parameter, *found in zip(reference.dense, *parts, strict=True):
        parameter.grad = None if found[0] is None else sum(found) / 3
    reference.dense_optimizer.step()
    for got, expected in zip(accumulating.dense, reference.dense, strict=True):
        assert_same(got, expected)
    assert any(not torch.equal(p, old) for p, old in zip(accumulating.dense, before, strict=True))


def test_what_is_left_at_the_end_makes_a_step_of_its_own(trainer_with, batches):
    accumulating, plain = trainer_with(2), trainer_with(1)
    learn(accumulating, batches[0])
    assert not accumulating.is_between_steps
    accumulating.step_dense()
    learn(plain, batches[0])
    assert all(torch.equal(got, expected) for got, expected in zip(accumulating.dense, plain.dense, strict=True))
    accumulating.step_dense()  # nothing is left
    assert all(torch.equal(got, expected) for got, expected in zip(accumulating.dense, plain.dense, strict=True))
