"""Gates, Kronecker maps and encodings of time against their formulas, in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foundation.model.gates import SurfaceExperts, SurfaceGate
from foundation.model.kron import SumKronLinear
from foundation.model.rotary import LogGapEncoding, Rotary, positions_of
from tests.foundation.model.drawing import drawn, linear, made

FLOAT64 = 1e-12  # the same sums in another order


def assert_same(got, expected):
    expected = torch.as_tensor(np.asarray(expected)) if not isinstance(expected, torch.Tensor) else expected
    torch.testing.assert_close(got.detach(), expected.detach(), rtol=FLOAT64, atol=FLOAT64)


def test_a_new_gate_and_new_own_experts_change_nothing():
    x, surfaces = drawn(4, 3), torch.tensor([0, 1, 1, 0])
    assert_same(SurfaceGate(2, 3, hidden=5).double()(x, drawn(4, 2)), x)
    layer = SurfaceExperts(3, 2, num_experts=2, num_surfaces=2).double()
    assert_same(layer(x, surfaces), layer(x, 1 - surfaces))
    assert_same(layer(x, surfaces), torch.relu(layer.shared(x)).unflatten(1, (2, 2)).mean(1))


def test_what_starts_at_zero_learns_from_the_first_step():
    torch.manual_seed(0)
    gate, experts, surfaces = (
        SurfaceGate(2, 3, hidden=5),
        SurfaceExperts(3, 2, num_experts=2, num_surfaces=2),
        [0, 1, 1, 0],
    )
    (
        gate(torch.randn(4, 3), torch.randn(4, 2)).sum() + experts(torch.randn(4, 3), torch.tensor(surfaces)).sum()
    ).backward()
    for parameter in (gate.second.weight, gate.second.bias, experts.own, experts.mixture.weight):
        assert (parameter.grad != 0).any(dim=-1).all()


def test_a_gate_is_its_formula():
    gate, x, surface = made(SurfaceGate(2, 3, hidden=5)), drawn(4, 3), drawn(4, 2, seed=2)
    rows = []
    for a, s in zip(x.numpy(), surface.numpy(), strict=True):
        hidden = np.maximum(linear(gate.first, np.concatenate([s, a])), 0)
        rows.append(a * 2 / (1 + np.exp(-linear(gate.second, hidden))))
    assert_same(gate(x, surface), np.stack(rows))
    assert torch.autograd.gradcheck(lambda s, *_: gate(x, s), (surface.requires_grad_(), *gate.parameters()))


def test_what_is_gated_learns_from_its_value_alone():
    gate, x, surface = made(SurfaceGate(2, 3, hidden=5)), drawn(4, 3).requires_grad_(), drawn(4, 2, seed=2)
    out = gate(x, surface)
    out.sum().backward()
    assert_same(x.grad, (out / x).detach())


def test_experts_are_their_formula():
    layer, x = made(SurfaceExperts(3, 2, num_experts=4, num_surfaces=3)), drawn(5, 3)
    surfaces = torch.tensor([2, 0, 2, 2, 0])
    rows = []
    for a, surface in zip(x.numpy(), surfaces.tolist(), strict=True):
        experts = np.maximum(linear(layer.shared, a), 0).reshape(4, 2)
        odds = np.exp(layer.mixture.weight.detach().numpy()[surface])
        own = a @ layer.own.detach().numpy()[surface]
        rows.append((odds / odds.sum()) @ experts + own)
    assert_same(layer(x, surfaces), np.stack(rows))
    assert torch.autograd.gradcheck(lambda x, *_: layer(x, surfaces), (x.requires_grad_(), *layer.parameters()))


def test_sum_kron_linear_is_a_sum_of_kronecker_products_on_the_flat_tokens():
    layer, x = made(SumKronLinear(5, 3, 4, num_terms=2)), drawn(2, 5, 4)
    tokens, widths = layer.tokens.detach().numpy(), layer.width.detach().numpy()
    dense = sum(np.kron(z.T, w.T) for z, w in zip(tokens, widths, strict=True))
    assert_same(layer(x), np.stack([(dense @ a.reshape(-1)).reshape(3, 4) for a in x.numpy()]))
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x.requires_grad_(), *layer.parameters()))


def test_sum_kron_linear_starts_with_the_size_of_its_input():
    torch.manual_seed(0)
    out = SumKronLinear(32, 16, 64)(torch.randn(64, 32, 64))
    assert 0.8 < out.std().item() < 1.25


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_positions_count_from_the_newest(counts):
    offsets = torch.tensor([0, *counts]).cumsum(0)
    assert positions_of(offsets).tolist() == [place for count in counts for place in reversed(range(count))]


@pytest.mark.parametrize("on", ["position", "log_age"])
def test_rotary_is_a_rotation_pair_by_pair(on):
    rotary, x = Rotary(6, on=on, base=100.0, scale_days=2.0, resolution=3.0), drawn(3, 2, 6)
    ages = torch.tensor([9.0, 4.0, 0.5], dtype=torch.float64)
    phases = [2, 1, 0] if on == "position" else [3 * math.log(1 + age / 2) for age in ages.tolist()]
    expected = np.zeros((3, 2, 6))
    for event, head in np.ndindex(3, 2):
        for pair in range(3):
            turn = np.exp(1j * phases[event] * 100 ** (-pair / 3))
            turned = turn * complex(x[event, head, pair], x[event, head, pair + 3])
            expected[event, head, [pair, pair + 3]] = turned.real, turned.imag
    found = rotary.phases(torch.tensor([0, 3]), ages)
    assert_same(rotary(x, found), expected)
    assert torch.autograd.gradcheck(lambda x: rotary(x, found), (x.requires_grad_(),))


@given(first=st.floats(0, 50), second=st.floats(0, 50), shift=st.floats(-50, 50))
def test_products_of_turned_rows_depend_on_the_difference_of_phases_alone(first, second, shift):
    rotary, q, k = Rotary(4), drawn(1, 1, 4), drawn(1, 1, 4, seed=2)

    def product(a, b):
        a, b = torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)
        return (rotary(q, a) * rotary(k, b)).sum().item()

    assert math.isclose(product(first, second), product(first + shift, second + shift), rel_tol=0, abs_tol=1e-9)


def test_an_age_is_encoded_between_its_neighbours_in_the_table():
    encoding = made(LogGapEncoding(3, num_places=4, scale_days=1.0))
    table = encoding.table.weight.detach()
    gaps = torch.tensor([0.0, 1.0, 2**1.5 - 1, 3.0, 7.0, 1e9], dtype=torch.float64)
    expected = torch.stack([table[0], table[1], (table[1] + table[2]) / 2, table[2], table[3], table[3]])
    assert_same(encoding(gaps), expected)


def test_no_events_have_no_encoding():
    nothing = torch.zeros(0, dtype=torch.float64)
    assert LogGapEncoding(3)(nothing.float()).shape == (0, 3)
    assert Rotary(4)(torch.zeros(0, 2, 4), nothing).shape == (0, 2, 4)
