"""The whole model, its tables in TorchRec on one gloo process."""

from copy import copy, deepcopy
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from foundation.config import RECIPE_READS, ModelConfig
from foundation.data.schema import ids_of, numbers_of
from foundation.model.gem import GemModel
from foundation.model.history import Events, merged
from foundation.model.numbers import NumberEncoding, quantile_edges
from foundation.model.recipes import RECIPES
from foundation.training.loss import masked_cross_entropy
from foundation.training.trainer import Trainer
from tests.foundation.model.drawing import FLOAT32, GEM, RATES, assert_same, trainer_of

LESS = {
    "no sequence": {"sequence": False},
    "no interleaving": {"interleaving": False},
    "no match": {"match": False},
    "no gates": {"gates": False},
    "no cross": {"cross_layers": 0},
}


@pytest.fixture(scope="module", params=[*GEM])
def trainer(schema, config, world, request):
    torch.manual_seed(0)
    return trainer_of(GemModel(schema, config.model_copy(update=GEM[request.param])), world)


def changes_of_one_input(schema, request):
    """(name, the request with nothing else changed) for everything that a model reads of it."""

    def changed(name, change):
        other = deepcopy(request)
        change(other)
        return name, other

    def columns(where, features, ids, numbers):
        for column, feature in enumerate(ids_of(features)):
            yield changed(f"{where}.{feature.name}", lambda r, at=column: ids(r)[:, at].__iadd__(7))
        for column, feature in enumerate(numbers_of(features)):
            yield changed(f"{where}.{feature.name}", lambda r, at=column: numbers(r)[:, at].__iadd__(1))

    yield changed("surfaces", lambda r: setattr(r, "surface", 1 - r.surface))
    yield from columns("request", schema.request_features(), lambda r: r.ids, lambda r: r.numbers)
    candidate = schema.candidate_features()
    yield from columns("candidate", candidate, lambda r: r.candidate_ids, lambda r: r.candidate_numbers)
    for log in schema.data.events:
        parts = (lambda r, at=part, log=log: r.histories[log][at] for part in range(3))
        ids, numbers, ages = parts
        yield from columns(f"history.{log}", schema.event_features(log), ids, numbers)
        yield changed(f"history.{log}.ages", lambda r, ages=ages: ages(r).__imul__(8))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_reads_the_fields_that_the_configuration_says(schema, config, recipe):
    asked = {"recipe"}

    class Asked:
        def __getattr__(self, name):
            asked.add(name)
            return getattr(config, name)

    RECIPES[recipe](schema, Asked())

    assert asked == RECIPE_READS.get(recipe, set(ModelConfig.model_fields))


OTHER = {
    "encoder_events": 3,
    "histories": "merged",
    "interleaved_layers": 3,
    "window": 2,
    "compute_skip": True,
    "rotary": "log_age",
    "cls_tokens": 2,
    "pooling": "hierarchical",
    "personalisation": "vector",
    "interleaving": False,
    "heads": 4,
    "activation": "relu",
    "scale": "inside",
    "cross_rank": 3,
}


@pytest.mark.parametrize(
    "lacks",
    [
        {"sequence": False},
        {"interleaved_layers": 0},
        {"interleaved_layers": 1, "interleaving": False},
        {"cross_layers": 0},
    ],
)
def test_what_a_model_does_not_read_makes_no_difference_to_it(schema, config, world, request_of, batched, lacks):
    def scores(settings):
        torch.manual_seed(0)
        model = trainer_of(GemModel(schema, settings), world)
        return model.score(batched([request_of(0, views=7, orders=4)]))

    base = config.model_copy(update=lacks)
    expected = scores(base)
    unread = base.unread - {"cls_tokens"}  # without layers they would be events that nobody made
    assert unread
    for name in unread:
        torch.testing.assert_close(scores(base.model_copy(update={name: OTHER[name]})), expected, equal_nan=True)


def test_the_configuration_names_every_recipe():
    assert set(get_args(ModelConfig.model_fields["recipe"].annotation)) == set(RECIPES)


def test_every_input_moves_the_scores(trainer, request_of, schema, batched):
    """No candidate is in the history, before a change or after, so that matches show nothing of events."""
    request = request_of(4, 4, 4)
    request.ids[:] = [[5, 2 + request.surface, 9]]
    request.candidate_ids = 2 + request.candidate_ids % 5
    ages = np.array([8.0, 4.0, 2.0, 1.0], dtype=np.float32)
    request.histories = {
        log: (14 + ids % 7, numbers, ages.copy()) for log, (ids, numbers, _) in request.histories.items()
    }
    before = trainer.score(batched([request]))[:, 0]
    changes = dict(changes_of_one_input(schema, request))
    changes["request.surface"].ids[0, 1] = 3 - request.surface  # its table has no row further on
    moved = {name: (trainer.score(batched([r]))[:, 0] - before).abs().max().item() for name, r in changes.items()}
    assert len(moved) == 16
    assert [name for name, distance in moved.items() if not distance > FLOAT32] == []


def test_the_encoder_reads_its_newest_events_but_matches_count_all(trainer, request_of, batched, config):
    request = request_of(5, 20, 0)
    ids, numbers, ages = request.histories["views"]
    older = ids.copy()
    older[: -config.encoder_events] = 1  # out of vocabulary; no candidate of this test is
    request.candidate_ids[:, :2] = 29
    unmatched = copy(request)
    unmatched.histories = request.histories | {"views": (older, numbers, ages)}
    ids[:-1][ids[:-1] == 29] = 28
    assert_same(trainer.score(batched([unmatched])), trainer.score(batched([request])))
    ids[0] = 29
    matched = copy(request)
    matched.histories = request.histories | {"views": (ids, numbers, ages)}
    difference = trainer.score(batched([matched])) - trainer.score(batched([unmatched]))
    assert difference.abs().nan_to_num().max() > 1e-3


def test_a_first_batch_without_history_does_not_keep_the_attention_from_learning(
    schema, config, world, request_of, batched
):
    """The gradients of the first step decide which ones DistributedDataParallel reduces in all later ones."""
    trainer = Trainer(GemModel(schema, config), world, RATES)
    encoder = nn.ModuleList([trainer.sharded.model.request.events, trainer.sharded.model.request.rounds])
    before: list[torch.Tensor] = []
    for lengths in [(0, 0), (0, 0), (5, 5)]:
        batch = batched([request_of(1, *lengths)])
        before = [parameter.clone() for parameter in encoder.parameters()]
        trainer.step(trainer.prepare(batch), lambda out, b=batch: masked_cross_entropy(out, b.labels, torch.ones(2)))
    assert not any(torch.equal(old, new) for old, new in zip(before, encoder.parameters(), strict=True))


@pytest.mark.parametrize("less", sorted(LESS))
def test_a_model_without_a_part_scores_and_learns(schema, config, world, request_of, batched, less):
    torch.manual_seed(0)
    trainer = Trainer(GemModel(schema, config.model_copy(update=LESS[less])), world, RATES)
    batch = batched([request_of(1, 5, 5), request_of(2, 0, 0)])
    before = trainer.score(batch)
    trainer.step(trainer.prepare(batch), lambda out: masked_cross_entropy(out, batch.labels, torch.ones(2)))
    after = trainer.score(batch)
    assert after.isfinite().equal(before.isfinite())
    assert (after - before).nan_to_num().abs().max() > 0
    if less != "no sequence":
        return
    changed = copy(request_of(1, 5, 5))
    changed.histories = {log: (ids, numbers, ages * 2) for log, (ids, numbers, ages) in changed.histories.items()}
    changed.candidate_ids[:] = 1
    same = copy(request_of(1, 5, 5))
    same.candidate_ids[:] = 1
    for request in (changed, same):
        for ids, _, _ in request.histories.values():
            ids[ids == 1] = 2  # no match either
    assert_same(trainer.score(batched([changed])), trainer.score(batched([same])))


def test_merged_histories_are_in_order_of_time_request_by_request():
    draw = np.random.default_rng(3)
    parts, flat = [], []
    for log in range(3):
        counts = draw.integers(0, 5, 4)
        ages = np.concatenate([-np.sort(-draw.integers(1, 6, count)) for count in counts]).astype(np.float32)
        tokens = 100 * log + np.arange(len(ages), dtype=np.float32)
        offsets = np.concatenate([[0], counts.cumsum()])
        parts.append(Events(torch.from_numpy(tokens)[:, None], torch.from_numpy(offsets), torch.from_numpy(ages)))
        owner = np.repeat(np.arange(4), counts)
        flat += list(zip(owner, -ages, [log] * len(ages), tokens, strict=True))
    joined = merged(parts)
    assert joined.tokens.flatten().tolist() == [token for *_, token in sorted(flat)]
    assert joined.ages_days.tolist() == [-age for _, age, *_ in sorted(flat)]
    assert joined.offsets.diff().tolist() == [sum(owner == row for owner, *_ in flat) for row in range(4)]


def test_number_encoding_is_piecewise_linear_between_quantiles_with_steps_where_they_repeat():
    torch.manual_seed(0)
    encoding = NumberEncoding(2, "candidate")
    sample = torch.stack([torch.arange(161.0), torch.cat([torch.zeros(150), torch.arange(1.0, 12.0)])], dim=1)
    encoding.fit(quantile_edges(sample.numpy()))
    numbers = torch.tensor([[15.0, 0.0], [-5.0, 0.5], [1000.0, 11.0]])

    def filled(value, edges):
        bins = []
        for low, high in pairwise(edges):
            bins.append(float(value > low) if high == low else min(max((value - low) / (high - low), 0), 1))
        return bins

    edges = [np.quantile(sample[:, f].double().numpy(), np.linspace(0, 1, 17)) for f in range(2)]
    for row, got in zip(numbers.tolist(), encoding(numbers), strict=True):
        for f, value in enumerate(row):
            expected = torch.relu(
                torch.tensor(filled(value, edges[f]), dtype=torch.float32) @ encoding.weight[f] + encoding.bias[f, 0]
            )
            torch.testing.assert_close(got[8 * f : 8 * f + 8], expected, rtol=1e-4, atol=1e-5)
