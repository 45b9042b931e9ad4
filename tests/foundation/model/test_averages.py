"""Scores by averaged parameters: the mean of the first steps, then a mean that forgets; training is as without it."""

from dataclasses import replace

import pytest
import torch

from foundation.model.gem import GemModel
from foundation.training.loss import masked_cross_entropy
from foundation.training.trainer import Trainer
from tests.foundation.model.drawing import RATES, assert_same

STEPS = 5


@pytest.fixture
def batch(request_of, batched):
    return batched([request_of(seed, 3, 2, num_candidates=4) for seed in range(3)])


@pytest.fixture
def trainer_with(schema, config, world):
    def make(average_steps):
        torch.manual_seed(0)
        return Trainer(GemModel(schema, config), world, replace(RATES, average_steps=average_steps))

    return make


def learned(trainer, batch):
    """The dense parameters after each of `STEPS` steps."""
    seen = []
    for _ in range(STEPS):
        trainer.step(trainer.prepare(batch), lambda out: masked_cross_entropy(out, batch.labels, torch.ones(2)))
        seen.append([parameter.detach().clone() for parameter in trainer.dense])
    return seen


def mean_of(seen, horizon):
    """`a + (p - a) / min(t, horizon)`, step by step."""
    average = seen[0]
    for number, parameters in enumerate(seen[1:], start=2):
        average = [a + (p - a) / min(number, horizon) for a, p in zip(average, parameters, strict=True)]
    return average


def test_scores_are_those_of_the_average_and_learning_does_not_notice(trainer_with, batch):
    plain, averaging = trainer_with(None), trainer_with(3)
    steps = learned(averaging, batch)
    for one, other in zip(learned(plain, batch)[-1], steps[-1], strict=True):
        assert torch.equal(one, other)
    scores, newest = averaging.score(batch), plain.score(batch)
    assert not torch.equal(scores.nan_to_num(), newest.nan_to_num())
    with torch.no_grad():
        for parameter, value in zip(plain.dense, mean_of(steps, 3), strict=True):
            parameter.copy_(value)
    assert_same(scores, plain.score(batch))
    assert all(torch.equal(p, q) for p, q in zip(averaging.dense, steps[-1], strict=True)), "and they are put back"


def test_a_step_gives_the_scores_of_the_average_if_they_are_wanted(trainer_with, batch):
    trainer = trainer_with(3)
    learned(trainer, batch)
    expected = trainer.score(batch)

    def loss(logits):
        return masked_cross_entropy(logits, batch.labels, torch.ones(2))

    assert torch.equal(trainer.step(trainer.prepare(batch), loss)[0].nan_to_num(), expected.nan_to_num())
    averaged = trainer.score(batch)
    assert not torch.equal(
        trainer.step(trainer.prepare(batch), loss, scored=False)[0].nan_to_num(), averaged.nan_to_num()
    )


@pytest.mark.parametrize("average_steps", [None, 3])
@pytest.mark.parametrize("training", [True, False])
def test_scoring_leaves_the_mode_that_was_there(trainer_with, batch, average_steps, training):
    trainer = trainer_with(average_steps)
    trainer.model.train(training)
    trainer.score(batch)
    assert {module.training for module in trainer.model.modules()} == {training}


def test_slowed_down_to_nothing_neither_optimizer_learns(trainer_with, batch):
    trainer = trainer_with(None)
    tables = list(trainer.sharded.model.embedding.collection.parameters())
    for factor, moves in ((0.0, False), (1.0, True)):
        before = [[parameter.detach().clone() for parameter in group] for group in (trainer.dense, tables)]
        trainer.slow_down(factor)
        learned(trainer, batch)
        for group, old in zip((trainer.dense, tables), before, strict=True):
            assert any(not torch.equal(p.detach(), o) for p, o in zip(group, old, strict=True)) == moves


def test_an_average_of_one_step_is_the_newest(trainer_with, batch):
    plain, averaging = trainer_with(None), trainer_with(1)
    learned(plain, batch)
    learned(averaging, batch)
    assert torch.equal(averaging.score(batch).nan_to_num(), plain.score(batch).nan_to_num())


def test_loading_its_tensors_restores_the_average_and_how_it_goes_on(trainer_with, batch):
    first, second = trainer_with(3), trainer_with(3)
    learned(first, batch)
    kept = {name: value.clone() for name, value in first.tensors().items()}
    for name, value in second.tensors().items():
        value.copy_(kept[name])
    for trainer in (first, second):
        learned(trainer, batch)
    assert torch.equal(first.score(batch).nan_to_num(), second.score(batch).nan_to_num())
