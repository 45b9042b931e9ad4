"""What a step works on, counted on a model and batches whose numbers are known."""

import pytest
import torch

from foundation.config import ModelConfig
from foundation.efficiency.flops import counting_model
from foundation.efficiency.workload import kept_bytes
from foundation.model.embedding import TableModel


def test_what_the_backward_pass_needs_is_counted_once_and_without_parameters(batch_of):
    class Square(TableModel):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1, 5))

        def of_batch(self, batch):
            x = torch.ones(len(batch.surfaces), 5).requires_grad_()
            y = x * self.weight  # keeps x and the weight
            return y * y  # keeps y, twice

    batch = batch_of([3, 1], [2, 4])
    assert kept_bytes(Square(), batch) == (2 * 5 * 4 + 2 * 5 * 4) / 2


def test_longer_histories_keep_more(schema, batch_of):
    config = ModelConfig(width=8, encoder_events=64, heads=2, interaction_tokens=3, hidden=16)
    model = counting_model(schema, config)
    short, long = (kept_bytes(model, batch_of([events] * 4, [3] * 4)) for events in (4, 64))
    assert 0 < short < long


def test_activations_that_are_made_again_are_not_kept(schema, batch_of):
    # `counting_model` switches checkpointing off, so a plan is one without it.
    configs = [ModelConfig(width=8, hidden=16, checkpoint_activations=again) for again in (False, True)]
    kept = [kept_bytes(counting_model(schema, config), batch_of([5], [3])) for config in configs]
    assert kept[0] == pytest.approx(kept[1])
