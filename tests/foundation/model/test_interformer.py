"""Seed pooling and InterFormer's parts against their formulas, request by request, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foundation.model.gdpa import pointwise
from foundation.model.history import Events
from foundation.model.hstu import HstuLayer
from foundation.model.interformer import (
    InterFormerLayer,
    PersonalAttention,
    PersonalMatrix,
    PersonalVector,
    TokenSummary,
    edges,
    prepend,
)
from foundation.model.pooling import HierarchicalSeedPooling, SeedPooling
from foundation.model.wukong import WukongLayer
from tests.foundation.model.drawing import drawn, linear, made, numpy_of, offsets_of

FLOAT64 = 1e-11  # the same sums in another order
WIDTH, HEADS, POSITIONS, TOKENS, SUMMARY = 4, 2, 16, 3, 2
LENGTHS = [(0, 1, 7, 3), (0, 0), (1,), (9, 0)]
FORM = pointwise(WIDTH // HEADS, POSITIONS)
PERSONAL = {
    "vector": lambda: PersonalVector(WIDTH, num_summary=SUMMARY, hidden=5),
    "matrix": lambda: PersonalMatrix(WIDTH, num_summary=SUMMARY, hidden=5),
    "attention": lambda: PersonalAttention(WIDTH, HEADS, FORM),
}


def mlp(layers, x):
    return linear(layers[2], np.maximum(linear(layers[0], x), 0))


def assert_same(got, expected):
    torch.testing.assert_close(got.detach(), torch.as_tensor(np.asarray(expected)), rtol=FLOAT64, atol=FLOAT64)


def pooled(pooling, events):
    """Softmax of each head and seed over the events of one request."""
    answer = np.zeros((pooling.num_tokens, WIDTH))
    keys, values, size = linear(pooling.key, events), linear(pooling.value, events), WIDTH // HEADS
    for head, seed in np.ndindex(HEADS, pooling.num_tokens):
        part = slice(head * size, (head + 1) * size)
        odds = np.exp(keys[:, part] @ numpy_of(pooling.seeds)[head, seed] / np.sqrt(size))
        if len(events):
            answer[seed, part] = odds / odds.sum() @ values[:, part]
    return linear(pooling.out, answer)


def layer(form="attention", **options):
    options = {
        "summary": TokenSummary(TOKENS, WIDTH, num_summary=SUMMARY),
        "personal": PERSONAL[form](),
        "pooling": SeedPooling(WIDTH, num_tokens=2, heads=HEADS),
        "num_cls": 1,
        "num_recent": 2,
    } | options
    interaction = WukongLayer(TOKENS + 5, WIDTH, num_fm=1, num_linear=2, rank=2, hidden=4)
    return made(InterFormerLayer(WIDTH, interaction=interaction, attention=HstuLayer(WIDTH, HEADS, FORM), **options))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_pooling_is_a_softmax_over_each_history(lengths):
    pooling, events = made(SeedPooling(WIDTH, num_tokens=3, heads=HEADS)), drawn(sum(lengths), WIDTH)
    offsets = offsets_of(lengths)
    pieces = np.split(events.numpy(), np.cumsum(lengths)[:-1])
    assert_same(pooling(events, offsets), np.stack([pooled(pooling, piece) for piece in pieces]))
    inputs = (events.requires_grad_(), *pooling.parameters())
    assert torch.autograd.gradcheck(lambda e, *_: pooling(e, offsets), inputs)


def test_hierarchical_pooling_reduces_the_answers_of_its_seeds():
    pooling = made(HierarchicalSeedPooling(WIDTH, num_seeds=5, num_tokens=2, heads=HEADS, num_terms=3))
    events, offsets = drawn(4, WIDTH), offsets_of((3, 0, 1))
    answers = numpy_of(pooling.ask(events, offsets))
    terms = zip(numpy_of(pooling.reduce.tokens), numpy_of(pooling.reduce.width), strict=True)
    assert_same(pooling(events, offsets), sum(z.T @ answers @ w for z, w in terms))
    assert not pooling(events, offsets)[1].any()


def test_scores_far_apart_between_requests_neither_vanish_nor_overflow():
    pooling = SeedPooling(WIDTH, num_tokens=1, heads=HEADS)
    events = torch.cat([torch.randn(3, WIDTH) * 1e4, torch.randn(2, WIDTH)]).requires_grad_()
    out = pooling(events, offsets_of((3, 2)))
    out.sum().backward()
    assert out.isfinite().all()
    assert events.grad.isfinite().all()
    torch.testing.assert_close(out[1:], pooling(events[3:], offsets_of((2,))))


@pytest.mark.parametrize("form", PERSONAL)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_personal_layers_are_their_formulas_event_by_event(form, lengths):
    block, events = made(PERSONAL[form]()), drawn(sum(lengths), WIDTH)
    summary, offsets = drawn(len(lengths), SUMMARY, WIDTH, seed=2), offsets_of(lengths)
    expected = np.zeros((sum(lengths), WIDTH))
    owners = [request for request, length in enumerate(lengths) for _ in range(length)]
    for place, owner in enumerate(owners):
        event, tokens = events[place].numpy(), summary[owner].numpy()
        if form == "vector":
            expected[place] = event * mlp(block.factors, tokens.reshape(-1))
        elif form == "matrix":
            expected[place] = event @ mlp(block.matrices, tokens.reshape(-1)).reshape(WIDTH, WIDTH)
        else:
            keys, values = np.split(linear(block.key_value, tokens), 2, axis=1)
            size = WIDTH // HEADS
            for token, head in np.ndindex(SUMMARY, HEADS):
                part = slice(head * size, (head + 1) * size)
                dot = event[part] @ keys[token, part] / np.sqrt(size)
                expected[place, part] += dot / (1 + np.exp(-dot)) / POSITIONS * values[token, part]
    assert_same(block(events, offsets, summary), expected)
    inputs = (events.requires_grad_(), summary.requires_grad_(), *block.parameters())
    assert torch.autograd.gradcheck(lambda e, s, *_: block(e, offsets, s), inputs)


def test_a_summary_is_a_gated_mix_of_tokens():
    block, x = made(TokenSummary(TOKENS, WIDTH, num_summary=SUMMARY)), drawn(2, TOKENS, WIDTH)
    mixed = numpy_of(block.mix.weight) @ x.numpy()
    assert_same(block(x), mixed / (1 + np.exp(-linear(block.gate.gate, mixed))))


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), first=st.integers(0, 3), last=st.integers(0, 3))
def test_edges_are_the_oldest_and_the_newest(lengths, first, last):
    events = torch.arange(1, 1 + sum(lengths), dtype=torch.float64).unsqueeze(1)
    oldest, newest = edges(events, offsets_of(lengths), num_first=first, num_last=last)
    for request, piece in enumerate(np.split(events.numpy()[:, 0], np.cumsum(lengths)[:-1])):
        assert oldest[request, :, 0].tolist() == [*piece[:first], *[0] * (first - len(piece))]
        assert newest[request, :, 0].tolist() == [*[0] * (last - len(piece)), *piece[max(0, len(piece) - last) :]]


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), count=st.integers(0, 2))
def test_prepended_tokens_stand_before_the_events_of_their_request(lengths, count):
    events, tokens = drawn(sum(lengths), 2), drawn(len(lengths), count, 2, seed=2)
    pieces = events.split(lengths)
    ages = torch.arange(1.0, 1 + sum(lengths), dtype=torch.float64)
    joined = prepend(tokens, Events(events, offsets_of(lengths), ages))
    none = torch.zeros(count, dtype=torch.float64)
    assert_same(joined.ages_days, torch.cat([part for piece in ages.split(lengths) for part in (none, piece)]))
    assert joined.offsets.tolist() == offsets_of([length + count for length in lengths]).tolist()
    assert_same(joined.tokens, torch.cat([part for pair in zip(tokens, pieces, strict=True) for part in pair]))


@pytest.mark.parametrize("form", PERSONAL)
def test_a_layer_is_its_parts_in_order(form):
    block, x, events, offsets = layer(form), drawn(2, TOKENS, WIDTH), drawn(4, WIDTH, seed=2), offsets_of((3, 1))
    tokens, after, seen = block(x, events, offsets)
    first, last = edges(events, offsets, num_first=1, num_last=2)
    expected = block.gate(torch.cat([first, block.pooling(events, offsets), last], dim=1))
    assert_same(seen, expected.detach())
    assert_same(tokens, block.interaction(torch.cat([x, expected], dim=1)).detach())
    personal = block.personal(events, offsets, block.summary(x))
    assert_same(after, block.attention(block.norm(events + personal), offsets).detach())


@pytest.mark.parametrize("form", PERSONAL)
@pytest.mark.parametrize("lengths", [(3, 0, 2), (0, 0), (1,)])
def test_layer_gradients_are_those_of_finite_differences(form, lengths):
    block, offsets = layer(form), offsets_of(lengths)
    x, events = drawn(len(lengths), TOKENS, WIDTH).requires_grad_(), drawn(sum(lengths), WIDTH, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, e: block(x, e, offsets), (x, events))
    sum(part.sum() for part in block(x, events, offsets)).backward()
    assert [name for name, parameter in block.named_parameters() if parameter.grad is None] == []


def test_a_batch_is_its_requests_one_by_one():
    lengths = (0, 1, 7, 3)
    block, x, events = layer(), drawn(4, TOKENS, WIDTH), drawn(sum(lengths), WIDTH, seed=2)
    alone = [block(x[i : i + 1], e, offsets_of((len(e),))) for i, e in enumerate(events.split(lengths))]
    for whole, parts in zip(block(x, events, offsets_of(lengths)), zip(*alone, strict=True), strict=True):
        assert_same(whole, torch.cat(parts).detach())


def test_a_layer_that_skips_uses_the_summary_of_the_one_before():
    block, offsets = layer(summary=None, personal=None, pooling=None), offsets_of((3, 1))
    x, events, seen = drawn(2, TOKENS, WIDTH), drawn(4, WIDTH, seed=2), drawn(2, 5, WIDTH, seed=3)
    tokens, after, passed = block(x, events, offsets, seen)
    assert passed is seen
    assert_same(tokens, block.interaction(torch.cat([x, seen], dim=1)).detach())
    assert_same(after, block.attention(events, offsets).detach())
