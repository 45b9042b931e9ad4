import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from foundation.config import ModelConfig
from foundation.efficiency.flops import (
    IN_PLACE,
    counting_model,
    estimated_useful_flops,
    executed_flops,
    useful_flops,
)
from foundation.model.gdpa import pointwise
from foundation.model.hstu import HstuLayer

RECIPES = ("gem", "fast", "dcnv2", "din")
LINEARS_OF_DCNV2 = 2  # FLOPs a weight and row


def counted(run):
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        run()
    return counter.get_total_flops()


def config_of(config, recipe):
    return config.model_copy(update={"recipe": recipe})


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("length", "candidates"), [(6, 3), (0, 2), (1, 1)])
def test_where_nothing_is_padded_all_that_is_done_is_useful(schema, config, batch_of, recipe, length, candidates):
    model = counting_model(schema, config_of(config, recipe))
    batch = batch_of([length] * 5, [candidates] * 5)
    useful, executed = useful_flops(model, [batch]), executed_flops(model, batch)
    assert useful.by_part == {name: executed.by_part.get(name, 0) for name in useful.by_part}
    assert useful.total == executed.total > 0
    assert useful.embedding_bytes == executed.embedding_bytes


@pytest.mark.parametrize("recipe", RECIPES)
def test_padding_is_done_but_not_useful(schema, config, batch_of, recipe):
    model = counting_model(schema, config_of(config, recipe))
    batch = batch_of([5, 60, 8, 33, 0, 6], [3, 9, 4, 5, 1, 4])
    useful, executed = useful_flops(model, [batch]).total, executed_flops(model, batch).total
    assert useful <= executed
    assert (useful == executed) == (recipe == "dcnv2")


def test_useful_flops_of_batches_do_not_depend_on_their_grouping(schema, config, batch_of):
    model = counting_model(schema, config)
    lengths, counts = [4, 60, 0, 9], [2, 5, 1, 3]
    fixed = useful_flops(model, [batch_of([], [])]).total
    whole = useful_flops(model, [batch_of(lengths, counts)]).total
    apart = useful_flops(model, [batch_of([n], [c]) for n, c in zip(lengths, counts, strict=True)]).total
    assert whole - fixed == apart - 4 * fixed


def test_a_model_of_linear_layers_has_two_flops_a_weight_and_row(schema, config, batch_of):
    model = counting_model(schema, config_of(config, "dcnv2"))
    batch = batch_of([2, 3], [4, 3])
    rows: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda m, x, y, n=name: rows.__setitem__(n, y[..., 0].numel()))
    by_part = executed_flops(model, batch).by_part
    for name, num_rows in rows.items():
        linear = model.get_submodule(name)
        assert by_part[name] == 2 * num_rows * linear.in_features * linear.out_features
    assert rows


def test_attention_over_a_history_is_counted_pair_by_pair():
    lengths, width = [3, 50], 8
    layer = HstuLayer(width, 2, pointwise(width // 2, 64))
    for length in lengths:
        with torch.no_grad():
            found = counted(lambda n=length: layer(torch.zeros(n, width), torch.tensor([0, n])))
        linear = 2 * length * width * (4 * width + width)
        assert found == linear + 2 * (2 * length * length * width)


def test_embedding_bytes_are_those_of_the_rows_looked_up(schema, config, batch_of):
    batch = batch_of([2, 100], [4, 3])
    ids = batch.ids.size + batch.candidate_ids.size
    events = 2 + 64  # the encoder's newest
    expected = (ids + events * batch.histories["orders"].ids.shape[1]) * config.width * 4
    assert executed_flops(counting_model(schema, config), batch).embedding_bytes == expected


def test_a_sample_estimates_what_all_requests_need(schema, config, batch_of):
    model = counting_model(schema, config)
    draw = np.random.default_rng(0)
    batches = [batch_of(draw.integers(0, 80, 24).tolist(), draw.integers(1, 9, 24).tolist(), seed) for seed in (0, 1)]
    exact = useful_flops(model, batches)
    estimate = estimated_useful_flops(model, batches, num_requests=12)
    assert estimate.total == pytest.approx(exact.total, rel=0.05)
    assert estimate.embedding_bytes == exact.embedding_bytes
    assert estimated_useful_flops(model, batches[:1], num_requests=24).total == useful_flops(model, batches[:1]).total


def test_activations_computed_twice_are_not_counted(schema, config, batch_of):
    again = ModelConfig.model_validate(config.model_dump() | {"checkpoint_activations": True})
    batch = batch_of([3], [2])
    once = executed_flops(counting_model(schema, config), batch).training
    assert executed_flops(counting_model(schema, again), batch).training == once
