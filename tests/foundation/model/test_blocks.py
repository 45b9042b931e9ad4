"""HSTU, target attention and Wukong against their formulas, one request, head and pair at a time, in float64."""

import numpy as np
import pytest
import torch

from foundation.model.gdpa import pointwise
from foundation.model.hstu import HstuLayer
from foundation.model.target_attention import TargetAttention
from foundation.model.wukong import WukongLayer

FLOAT64 = 1e-12  # the same sums in another order
WIDTH, HEADS, POSITIONS = 8, 2, 16
LENGTHS = (0, 1, 7, POSITIONS, 0, 3)
COUNTS = (2, 1, 3, 1, 1, 4)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(block, seed=0):
    """The block in float64 with every parameter drawn, so that none is at an accidental 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    block = block.double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return block


def hstu():
    return made(HstuLayer(WIDTH, HEADS, pointwise(WIDTH // HEADS, POSITIONS)))


def attention():
    return made(TargetAttention(WIDTH, HEADS, pointwise(WIDTH // HEADS, POSITIONS)))


def wukong(num_tokens=5):
    return made(WukongLayer(num_tokens, WIDTH, num_fm=2, num_linear=3, rank=2, hidden=6))


def silu(x):
    return x / (1 + np.exp(-x))


def linear(layer, x):
    weight = layer.weight.detach().numpy()
    return x @ weight.T + (0 if layer.bias is None else layer.bias.detach().numpy())


def norm(layer, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
    return scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy()


def attended(queries, keys, values):
    """SiLU(q k / sqrt(d)) / N · v, pair by pair."""
    size = WIDTH // HEADS
    out = np.zeros((len(queries), WIDTH))
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        for i, query in enumerate(queries):
            for key, value in zip(keys, values, strict=True):
                out[i, part] += silu(query[part] @ key[part] / np.sqrt(size)) / POSITIONS * value[part]
    return out


def pieces(flat, lengths):
    return np.split(flat.numpy(), np.cumsum(lengths)[:-1])


def test_hstu_is_its_formula_request_by_request():
    layer, x = hstu(), drawn(sum(LENGTHS), WIDTH)
    expected = []
    for events in pieces(x, LENGTHS):
        u, v, q, k = np.split(silu(linear(layer.uvqk, norm(layer.norm, events))), 4, axis=1)
        gated = norm(layer.attended_norm, attended(q, k, v)) * u
        expected.append(linear(layer.out, gated) + events)
    got = layer(x, offsets_of(LENGTHS)).detach()
    torch.testing.assert_close(got, torch.from_numpy(np.concatenate(expected)), rtol=FLOAT64, atol=FLOAT64)


def test_target_attention_is_its_formula_request_by_request():
    layer, candidates, events = attention(), drawn(sum(COUNTS), WIDTH), drawn(sum(LENGTHS), WIDTH, seed=2)
    expected = []
    for asking, answering in zip(pieces(candidates, COUNTS), pieces(events, LENGTHS), strict=True):
        keys, values = np.split(linear(layer.key_value, answering), 2, axis=1)
        expected.append(linear(layer.out, attended(linear(layer.query, asking), keys, values)))
    got = layer(candidates, events, offsets_of(COUNTS), offsets_of(LENGTHS)).detach()
    torch.testing.assert_close(got, torch.from_numpy(np.concatenate(expected)), rtol=FLOAT64, atol=FLOAT64)


def test_wukong_is_its_formula_with_the_plain_products_of_all_pairs():
    layer, x = wukong(), drawn(3, 5, WIDTH)
    expected = []
    for tokens in x.numpy():
        products = (tokens @ tokens.T) @ layer.projection.detach().numpy()  # the O(n²) form of X (Xᵀ Y)
        hidden = np.maximum(linear(layer.fm[1], norm(layer.fm[0], products.reshape(-1))), 0)
        fm = linear(layer.fm[3], hidden).reshape(2, WIDTH)
        mixed = layer.mix.weight.detach().numpy() @ tokens
        residual = layer.residual.weight.detach().numpy() @ tokens
        expected.append(norm(layer.norm, np.concatenate([fm, mixed]) + residual))
    torch.testing.assert_close(layer(x).detach(), torch.from_numpy(np.stack(expected)), rtol=FLOAT64, atol=FLOAT64)


@pytest.mark.parametrize("lengths", [(3, 0, 2), (0, 0), (1,)])
def test_hstu_gradients_are_those_of_finite_differences(lengths):
    layer, x = hstu(), drawn(sum(lengths), WIDTH).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, offsets_of(lengths)), (x, *layer.parameters()))


@pytest.mark.parametrize(("lengths", "counts"), [((3, 0, 2), (2, 1, 1)), ((0, 0), (1, 2)), ((1,), (1,))])
def test_target_attention_gradients_are_those_of_finite_differences(lengths, counts):
    layer, offsets = attention(), (offsets_of(counts), offsets_of(lengths))
    candidates = drawn(sum(counts), WIDTH).requires_grad_()
    events = drawn(sum(lengths), WIDTH, seed=2).requires_grad_()
    arguments = (candidates, events, *layer.parameters())
    assert torch.autograd.gradcheck(lambda c, e, *_: layer(c, e, *offsets), arguments)


def test_wukong_gradients_are_those_of_finite_differences():
    layer, x = wukong(), drawn(2, 5, WIDTH).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_without_any_history_every_parameter_still_has_a_gradient():
    """DistributedDataParallel waits for the gradient of each parameter, in each step."""
    layer = attention()
    layer(drawn(3, WIDTH), drawn(0, WIDTH), offsets_of((1, 2)), offsets_of((0, 0))).sum().backward()
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is None] == []


def test_an_empty_history_answers_with_the_bias_alone():
    layer = attention()
    answer = layer(drawn(3, WIDTH), drawn(0, WIDTH), offsets_of((1, 2)), offsets_of((0, 0))).detach()
    torch.testing.assert_close(answer, layer.out.bias.detach().expand(3, -1), rtol=0, atol=0)
