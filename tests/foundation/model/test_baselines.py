"""DCN-V2 and DIN: their parts against their formulas in float64, and the whole models as every ranker must behave."""

from copy import copy

import numpy as np
import pytest
import torch

from foundation.config import ModelConfig
from foundation.model.cross import CrossLayer, CrossNetwork
from foundation.model.dcnv2 import Dcnv2Model
from foundation.model.din import DinModel, HistoryInterest, MlpUnit
from foundation.model.inputs import HistoryTensors
from foundation.model.layout import bucket_by_length
from foundation.model.split import SplitLinear
from foundation.training.trainer import Trainer
from tests.foundation.model.drawing import RATES, assert_same, drawn, made, numpy_of, offsets_of, trainer_of

FLOAT64 = 1e-12  # the same sums in another order
OWNER = torch.tensor([0, 0, 1, 1, 1, 0])
MODELS = {"dcnv2": Dcnv2Model, "din": DinModel}


@pytest.fixture(scope="module", params=sorted(MODELS))
def trainer(schema, config, world, request):
    torch.manual_seed(0)
    return trainer_of(MODELS[request.param](schema, config), world)


def without_history(request, logs):
    changed = copy(request)
    changed.histories = {log: tuple(part[:0] for part in request.histories[log]) for log in logs}
    return changed


def test_a_split_layer_is_the_layer_over_both_halves():
    layer, requests, candidates = made(SplitLinear(4, 3, 5)), drawn(2, 4, seed=2), drawn(6, 3)
    expected = layer.joined(torch.cat([requests[OWNER], candidates], dim=1))
    assert_same(layer(requests, candidates, OWNER), expected, FLOAT64)


@pytest.mark.parametrize("rank", [None, 2])
def test_a_cross_layer_is_its_formula(rank):
    layer, x0, x = made(CrossLayer(5, rank)), drawn(3, 5), drawn(3, 5, seed=2)
    last = layer.mix if rank is None else layer.mix[1]
    weight = numpy_of(last.weight) if rank is None else numpy_of(last.weight) @ numpy_of(layer.mix[0].weight)
    rows = [a * (weight @ b + numpy_of(last.bias)) + b for a, b in zip(x0.numpy(), x.numpy(), strict=True)]
    assert_same(layer(x0, x).detach(), torch.from_numpy(np.stack(rows)), FLOAT64)
    assert torch.autograd.gradcheck(lambda a, b, *_: layer(a, b), (x0.requires_grad_(), x, *layer.parameters()))


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_a_cross_network_is_its_layers_over_both_halves(num_layers, rank):
    network = made(CrossNetwork(4, 3, num_layers=num_layers, rank=rank))
    requests, candidates = drawn(2, 4, seed=2), drawn(6, 3)
    expected = x0 = torch.cat([requests[OWNER], candidates], dim=1)
    if network.first is not None:
        expected = x0 * network.first.up(network.first.split.joined(x0)) + x0
    for layer in network.layers:
        expected = layer(x0, expected)
    assert len(network.layers) == max(0, num_layers - 1)
    assert_same(network(requests, candidates, OWNER), expected, FLOAT64)


def test_the_mlp_unit_is_an_mlp_over_query_key_difference_and_product():
    """`W [q ; k ; q - k ; q * k]` with W = [Wq - E, Wk + E, E, Wp] for any E is `Wq q + Wk k + Wp (q * k)`."""
    unit, q, k = made(MlpUnit(4, 3)), drawn(2, 3, 4), drawn(2, 5, 4, seed=2)
    extra = drawn(3, 4, seed=3).numpy()
    blocks = [numpy_of(unit.of_query.weight) - extra, numpy_of(unit.of_key.weight) + extra, extra]
    weight = np.concatenate([*blocks, numpy_of(unit.of_product.weight)], axis=1)
    expected = np.zeros((2, 3, 5))
    for place in np.ndindex(expected.shape):
        request, m, event = place
        a, b = q[request, m].numpy(), k[request, event].numpy()
        hidden = np.maximum(weight @ np.concatenate([a, b, a - b, a * b]) + numpy_of(unit.of_query.bias), 0)
        expected[place] = numpy_of(unit.out.weight)[0] @ hidden + numpy_of(unit.out.bias)[0]
    assert_same(unit(q, k).detach(), torch.from_numpy(expected), FLOAT64)
    arguments = (q.requires_grad_(), k.requires_grad_(), *unit.parameters())
    assert torch.autograd.gradcheck(lambda q, k, *_: unit(q, k), arguments)


@pytest.mark.parametrize(("lengths", "counts"), [((0, 1, 7, 3), (2, 1, 3, 4)), ((0, 0), (1, 2)), ((1,), (1,))])
def test_interest_is_the_weighted_sum_of_events(schema, lengths, counts):
    interest = made(HistoryInterest(schema, "orders", ModelConfig(width=4, hidden=24)))
    total = sum(lengths)
    tokens = {key: drawn(total, 4, seed=place) for place, key in enumerate(interest.keys)}
    ages = drawn(total, seed=8).abs()
    empty = torch.zeros(total, 0, dtype=torch.int64)
    history = HistoryTensors(offsets_of(lengths), empty, drawn(total, 1, seed=9), ages)
    candidates = drawn(sum(counts), interest.item_width, seed=10).requires_grad_()
    grouped = bucket_by_length(offsets_of(lengths), offsets_of(counts))

    events = np.concatenate([*(tokens[key].numpy() for key in interest.keys), history.numbers.numpy()], axis=1)
    events = np.concatenate([events, np.log1p(ages.numpy())[:, None]], axis=1)
    expected = []
    projected = numpy_of(interest.compared.weight)
    owners = [request for request, count in enumerate(counts) for _ in range(count)]
    for candidate, owner in zip(candidates.detach().numpy(), owners, strict=True):
        answer = np.zeros(interest.width)
        for event in events[sum(lengths[:owner]) : sum(lengths[: owner + 1])]:
            pair = (projected @ candidate, projected @ event[: interest.item_width])
            answer += interest.unit(*(torch.from_numpy(x)[None, None] for x in pair)).item() * event
        expected.append(answer)
    got = interest(candidates, tokens, history, grouped)
    assert_same(got.detach(), torch.from_numpy(np.stack(expected)), FLOAT64)
    arguments = (candidates, *(token.requires_grad_() for token in tokens.values()), *interest.parameters())
    assert torch.autograd.gradcheck(lambda c, *_: interest(c, tokens, history, grouped), arguments)


def test_dcnv2_reads_no_history_and_din_each_log(trainer, request_of, batched, schema):
    request = request_of(6, 5, 5)
    whole = trainer.score(batched([request]))
    for log in schema.data.events:
        other = without_history(request, schema.data.events)
        other.histories = request.histories | {log: other.histories[log]}
        moved = (trainer.score(batched([other])) - whole).abs().nan_to_num().max()
        assert (moved == 0) == isinstance(trainer.sharded.model, Dcnv2Model)


def test_din_reads_its_newest_events_alone(schema, config, world, request_of, batched):
    trainer = Trainer(DinModel(schema, config), world, RATES)
    request = request_of(5, 20, 20)
    short = copy(request)
    short.histories = {
        log: tuple(part[-config.encoder_events :] for part in parts) for log, parts in request.histories.items()
    }
    assert_same(trainer.score(batched([short])), trainer.score(batched([request])))
