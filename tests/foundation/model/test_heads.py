import pytest
import torch

from foundation.model.heads import SurfaceObjectiveHeads

HOME, SEARCH = 0, 1
CLICK, BUY = 0, 1


@pytest.fixture
def heads(schema):
    torch.manual_seed(0)
    made = SurfaceObjectiveHeads(schema, 4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def test_logits_are_nan_exactly_where_the_pair_does_not_exist(heads):
    surfaces = torch.tensor([HOME, SEARCH, HOME])
    logits = heads(torch.randn(3, 4), surfaces)
    assert logits.isnan().tolist() == [[False, True], [False, False], [False, True]]


def test_a_logit_is_the_shared_head_plus_the_surfaces_own(heads):
    trunk = torch.randn(2, 4)
    logits = heads(trunk, torch.tensor([HOME, SEARCH]))
    for row, surface, objective in [(0, HOME, CLICK), (1, SEARCH, CLICK), (1, SEARCH, BUY)]:
        expected = trunk[row] @ heads.shared.weight[objective] + heads.shared.bias[objective]
        expected += heads.own[surface, objective]
        torch.testing.assert_close(logits[row, objective], expected)


def test_at_first_every_surface_stands_where_all_stand(schema):
    heads = SurfaceObjectiveHeads(schema, 4)
    trunk = torch.randn(1, 4)
    here, there = (heads(trunk, torch.tensor([surface]))[0, CLICK] for surface in (HOME, SEARCH))
    assert here == there


def test_a_pair_that_does_not_exist_learns_nothing(heads):
    heads(torch.randn(3, 4), torch.tensor([HOME, HOME, HOME])).nansum().backward()
    assert heads.own.grad[HOME, BUY] == 0
    assert heads.shared.weight.grad.isfinite().all()
    assert heads.own.grad[HOME, CLICK] == 3
