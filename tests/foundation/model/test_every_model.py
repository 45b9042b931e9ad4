"""What every architecture must be: the same scores however requests and candidates are grouped and ordered."""

from copy import copy
from dataclasses import replace

import pytest
import torch

from foundation.model.dcnv2 import Dcnv2Model
from foundation.model.din import DinModel
from foundation.model.gem import GemModel
from foundation.training.loss import masked_cross_entropy
from tests.foundation.model.drawing import GEM, assert_same, trainer_of

UNEVEN = ((0, 0), (1, 0), (0, 1), (6, 6), (5, 2), (40, 3), (2, 9))
OTHERS = {"dcnv2": Dcnv2Model, "din": DinModel}


@pytest.fixture(scope="module", params=[*GEM, *OTHERS])
def trainer(schema, config, world, request):
    torch.manual_seed(0)
    name = request.param
    if name in GEM:
        return trainer_of(GemModel(schema, config.model_copy(update=GEM[name])), world)
    return trainer_of(OTHERS[name](schema, config.model_copy(update={"hidden": 32})), world)


@pytest.fixture
def uneven(request_of):
    return [request_of(seed, *lengths, num_candidates=1 + seed % 4) for seed, lengths in enumerate(UNEVEN)]


def with_candidates(request, order):
    changed = copy(request)
    for name in ("candidate_ids", "candidate_numbers", "labels"):
        setattr(changed, name, getattr(request, name)[order])
    return changed


def test_a_batch_scored_whole_is_its_requests_scored_one_by_one(trainer, uneven, batched):
    whole = trainer.score(batched(uneven))
    assert_same(whole, torch.cat([trainer.score(batched([request])) for request in uneven]))
    assert whole.nan_to_num().std() > 0.1, "scores that do not differ would prove nothing"


def test_any_order_of_requests_gives_the_same_scores(trainer, uneven, batched):
    whole = trainer.score(batched(uneven)).split([len(request.candidate_ids) for request in uneven])
    assert_same(trainer.score(batched(uneven[::-1])), torch.cat(whole[::-1]))


def test_scores_follow_their_candidates_through_any_order(trainer, request_of, batched):
    request, order = request_of(3, 7, 4, num_candidates=6), [4, 2, 0, 5, 1, 3]
    scores = trainer.score(batched([request]))
    assert_same(trainer.score(batched([with_candidates(request, order)])), scores[order])


def test_a_candidate_alone_scores_as_among_others(trainer, request_of, batched):
    request = request_of(3, 7, 4, num_candidates=6)
    assert_same(trainer.score(batched([with_candidates(request, [2])])), trainer.score(batched([request]))[2:3])


@pytest.mark.parametrize("lengths", [(0, 0), (1, 0), (0, 1), (1, 1), (256, 256)])
@pytest.mark.parametrize("num_candidates", [1, 5])
def test_any_history_gives_finite_scores_and_gradients(trainer, request_of, batched, lengths, num_candidates):
    batch = batched([request_of(7, *lengths, num_candidates=num_candidates)])
    outputs, loss = trainer.step(
        trainer.prepare(batch), lambda out: masked_cross_entropy(out, batch.labels, torch.ones(2))
    )
    exists = trainer.score(batch).isfinite()
    assert loss.isfinite()
    assert outputs.isfinite().equal(exists)
    assert exists[:, 0].all()
    assert all(parameter.grad.isfinite().all() for parameter in trainer.dense)
    assert all(value.isfinite().all() for value in trainer.sharded.model.embedding.collection.parameters())


def test_bfloat16_products_score_nearly_the_same_and_keep_float32_logits(trainer, uneven, batched, monkeypatch):
    batch = batched(uneven)
    exact = trainer.score(batch)
    monkeypatch.setattr(trainer, "config", replace(trainer.config, matmul=torch.bfloat16))
    near = trainer.score(batch)
    off = (near - exact).nan_to_num().abs()
    assert near.dtype == torch.float32
    assert 0 < off.max() < 0.4 * exact.nan_to_num().std(), "8 bits of each product, over a dozen layers"
    assert near.isfinite().equal(exact.isfinite())
    _, loss = trainer.step(trainer.prepare(batch), lambda out: masked_cross_entropy(out, batch.labels, torch.ones(2)))
    assert loss.isfinite()
    assert {parameter.grad.dtype for parameter in trainer.dense} == {torch.float32}
    assert all(parameter.grad.isfinite().all() for parameter in trainer.dense)
