"""HSTU, target attention and Wukong against their formulas, one request, head and pair at a time, in float64."""

import numpy as np
import pytest
import torch

from foundation.model.hstu import HstuLayer, pointwise_attention
from foundation.model.layout import bucket_by_length
from foundation.model.target_attention import TargetAttention
from foundation.model.wukong import WukongLayer

FLOAT64 = 1e-12  # the same sums in another order
WIDTH, HEADS, POSITIONS = 8, 2, 16
LENGTHS = (0, 1, 7, POSITIONS, 0, 3)
COUNTS = (2, 1, 3, 1, 1, 4)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def buckets(lengths=LENGTHS, counts=COUNTS):
    return bucket_by_length(offsets_of(lengths), offsets_of(counts))


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
    return made(HstuLayer(WIDTH, HEADS, POSITIONS))


def attention():
    return made(TargetAttention(WIDTH, HEADS, POSITIONS))


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
    got = layer(x, buckets()).detach()
    torch.testing.assert_close(got, torch.from_numpy(np.concatenate(expected)), rtol=FLOAT64, atol=FLOAT64)


def test_target_attention_is_its_formula_request_by_request():
    layer, candidates, events = attention(), drawn(sum(COUNTS), WIDTH), drawn(sum(LENGTHS), WIDTH, seed=2)
    expected = []
    for asking, answering in zip(pieces(candidates, COUNTS), pieces(events, LENGTHS), strict=True):
        keys, values = np.split(linear(layer.key_value, answering), 2, axis=1)
        expected.append(linear(layer.out, attended(linear(layer.query, asking), keys, values)))
    got = layer(candidates, events, buckets()).detach()
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


def test_padding_adds_nothing_and_gets_no_gradient():
    q, k, v = (drawn(1, 3, 4, seed=seed).requires_grad_() for seed in range(3))
    nothing = torch.zeros(1, 2, 4, dtype=torch.float64, requires_grad=True)
    got = pointwise_attention(q, torch.cat([k, nothing], 1), torch.cat([v, nothing], 1), num_positions=4)
    torch.testing.assert_close(got, pointwise_attention(q, k, v, num_positions=4), rtol=FLOAT64, atol=FLOAT64)
    assert not pointwise_attention(q, nothing, nothing, num_positions=4).any()


@pytest.mark.parametrize("lengths", [(3, 0, 2), (0, 0), (1,)])
def test_hstu_gradients_are_those_of_finite_differences(lengths):
    layer, x = hstu(), drawn(sum(lengths), WIDTH).requires_grad_()
    grouped = buckets(lengths, (1,) * len(lengths))
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, grouped), (x, *layer.parameters()))


@pytest.mark.parametrize(("lengths", "counts"), [((3, 0, 2), (2, 1, 1)), ((0, 0), (1, 2)), ((1,), (1,))])
def test_target_attention_gradients_are_those_of_finite_differences(lengths, counts):
    layer, grouped = attention(), buckets(lengths, counts)
    candidates = drawn(sum(counts), WIDTH).requires_grad_()
    events = drawn(sum(lengths), WIDTH, seed=2).requires_grad_()
    arguments = (candidates, events, *layer.parameters())
    assert torch.autograd.gradcheck(lambda c, e, *_: layer(c, e, grouped), arguments)


def test_wukong_gradients_are_those_of_finite_differences():
    layer, x = wukong(), drawn(2, 5, WIDTH).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_without_any_history_every_parameter_still_has_a_gradient():
    """DistributedDataParallel waits for the gradient of each parameter, in each step."""
    layer, grouped = attention(), buckets((0, 0), (1, 2))
    layer(drawn(3, WIDTH), drawn(0, WIDTH), grouped).sum().backward()
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is None] == []


def test_an_empty_history_answers_with_the_bias_alone():
    layer = attention()
    answer = layer(drawn(3, WIDTH), drawn(0, WIDTH), buckets((0, 0), (1, 2))).detach()
    torch.testing.assert_close(answer, layer.out.bias.detach().expand(3, -1), rtol=0, atol=0)
