"""GDPA of every device against its formula, pair by pair in float64; `Case.window` is of self-attention alone.

Where the Triton kernel runs interpreted, on a CPU, `test_kernel.py` runs this very file.
"""

import math
import os
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foundation.kernels import tiles
from foundation.kernels.activation import ACTIVATIONS, Pointwise, activate_, pull_back_
from foundation.kernels.gdpa_cpu import GdpaCpu
from foundation.model.gdpa import gdpa, pointwise

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FLOAT64 = 1e-12  # the same sums in another order
FLOAT32 = 2e-5
HEADS, KEY_WIDTH, VALUE_WIDTH = 2, 5, 3


@dataclass(frozen=True)
class Case:
    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    window: int | None = None


CASES = {
    "several requests": Case((2, 1, 3, 1, 4), (0, 1, 7, 70, 3)),
    "a history over itself": Case((0, 1, 7, 70, 3), (0, 1, 7, 70, 3)),
    "events over two summary tokens": Case((0, 1, 7, 70), (2, 2, 2, 2)),
    "one request, one event, one candidate": Case((1,), (1,)),
    "no history at all": Case((1, 2), (0, 0)),
    "no request": Case((), ()),
    "a window of 0": Case((5, 0, 1), (5, 0, 1), window=0),
    "a window of 3": Case((0, 1, 7, 70, 3), (0, 1, 7, 70, 3), window=3),
    "a window longer than any history": Case((5, 9), (5, 9), window=50),
}


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture(params=["interpreter"] if INTERPRETED else ["cpu", pytest.param("cuda", marks=NO_GPU)])
def attend(request):
    """The function under test, from and to the CPU."""
    if request.param == "cpu":
        return gdpa
    if request.param == "interpreter":
        from foundation.kernels.gdpa_triton import GdpaTriton

        return lambda *tensors, form: GdpaTriton.apply(*tensors, form)
    return lambda *tensors, form: gdpa(*(tensor.cuda() for tensor in tensors), form=form).cpu()


CUTS = ["as it is", "every request alone, cut small", "small ones together"]


@pytest.fixture(params=CUTS[:1] if INTERPRETED else CUTS)
def cut(request, monkeypatch):
    """How the CPU cuts a batch must not be seen in its result."""
    if request.param == "every request alone, cut small":
        monkeypatch.setattr(tiles, "SMALL_ROWS", 0)
        monkeypatch.setattr(tiles, "TILE_SCORES", 100)
    if request.param == "small ones together":
        monkeypatch.setattr(tiles, "SMALL_ROWS", 10**9)


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def drawn(case, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(case.lengths))

    def draw(rows, width):
        return torch.randn(rows, HEADS, width, generator=generator, dtype=dtype).requires_grad_()

    rows = sum(case.lengths)
    return draw(sum(case.counts), KEY_WIDTH), draw(rows, KEY_WIDTH), draw(rows, VALUE_WIDTH)


ACT = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "hardswish": lambda x: x * min(max(x + 3, 0.0), 6.0) / 6,
}


def by_formula(q, k, v, case, form):
    """Pair by pair, with Python's own numbers."""
    out = torch.zeros(len(q), HEADS, VALUE_WIDTH, dtype=torch.float64)
    requests = zip(pairwise(offsets_of(case.counts).tolist()), pairwise(offsets_of(case.lengths).tolist()), strict=True)
    for (start, stop), (first, last) in requests:
        for i in range(start, stop):
            for j in range(first, last):
                if form.window is not None and abs((i - start) - (j - first)) > form.window:
                    continue
                for head in range(HEADS):
                    dot = sum(a * b for a, b in zip(q[i, head].tolist(), k[j, head].tolist(), strict=True))
                    weight = ACT[form.activation](form.scale_in * dot) * form.scale_out
                    out[i, head] += weight * v[j, head].detach()
    return out


def gradients_hold(function, inputs):
    """Along each coordinate; along a drawn direction where every call is interpreted, a thousand times slower."""
    return torch.autograd.gradcheck(function, inputs, fast_mode=INTERPRETED)


def close(got, expected, within=FLOAT64):
    torch.testing.assert_close(got, expected, rtol=within, atol=within)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_is_its_formula(attend, case):
    q, k, v = drawn(case)
    form = Pointwise("silu", scale_in=0.7, scale_out=0.25, window=case.window)
    got = attend(q, k, v, offsets_of(case.counts), offsets_of(case.lengths), form=form)
    close(got.detach(), by_formula(q, k, v, case, form))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_its_formula_and_pulls_back_its_derivative(attend, activation):
    case = Case((2, 3), (3, 2))
    q, k, v = drawn(case)
    form = Pointwise(activation, scale_in=1.3, scale_out=0.5)
    offsets = offsets_of(case.counts), offsets_of(case.lengths)
    close(attend(q, k, v, *offsets, form=form).detach(), by_formula(q, k, v, case, form))
    assert gradients_hold(lambda q, k, v: attend(q, k, v, *offsets, form=form), (q, k, v))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_of_0_is_0(activation):
    """What lies beyond a window or a history weighs nothing, without a mask."""
    assert activate_(torch.zeros(1), activation).item() == 0


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activations_derivative_is_that_of_finite_differences(activation):
    x = torch.tensor([-4.0, -1.7, -0.3, 0.4, 2.2, 5.0], dtype=torch.float64)
    up, down = activate_(x + 1e-6, activation), activate_(x - 1e-6, activation)
    close(pull_back_(torch.full_like(x, 3.0), x, activation), 3 * (up - down) / 2e-6, 1e-8)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(
    "case",
    [Case((2, 1, 1), (3, 0, 2)), Case((4, 0, 1), (4, 0, 1)), Case((2, 1), (0, 0)), Case((7,), (7,), window=1)],
    ids=str,
)
def test_gradients_are_those_of_finite_differences(attend, case):
    form = Pointwise("gelu", scale_in=0.7, scale_out=0.25, window=case.window)  # its slope at 0 is not 0
    offsets = offsets_of(case.counts), offsets_of(case.lengths)
    assert gradients_hold(lambda q, k, v: attend(q, k, v, *offsets, form=form), drawn(case))


@pytest.mark.parametrize("case", [Case((40, 3), (90, 140)), Case((90, 300), (90, 300), window=20)], ids=str)
def test_float32_and_its_gradients_are_float64s_to_its_precision(attend, case):
    """Histories of more than one block of the kernel."""
    form = pointwise(KEY_WIDTH, 100, window=case.window)
    offsets = offsets_of(case.counts), offsets_of(case.lengths)
    exact, rough = drawn(case), tuple(tensor.detach().float().requires_grad_() for tensor in drawn(case))
    expected, got = gdpa(*exact, *offsets, form=form), attend(*rough, *offsets, form=form)
    close(got.double(), expected, FLOAT32)
    expected.square().sum().backward()
    got.square().sum().backward()
    for wanted, had in zip(exact, rough, strict=True):
        close(had.grad.double(), wanted.grad, FLOAT32)


def test_rows_may_be_views_into_one_projection(attend):
    """As an HSTU layer hands them over; the gradient finds its way back."""
    packed = torch.randn(9, 3 * HEADS * 4, dtype=torch.float64, requires_grad=True)
    offsets, form = offsets_of((4, 5)), Pointwise(scale_out=0.5)

    def of(packed, copy):
        parts = [part.unflatten(1, (HEADS, 4)) for part in packed.chunk(3, dim=1)]
        return attend(*(part.contiguous() if copy else part for part in parts), offsets, offsets, form=form)

    close(of(packed, copy=False), of(packed, copy=True))
    assert gradients_hold(lambda packed: of(packed, copy=False), packed)


@given(data=st.data(), sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), min_size=1, max_size=9))
@settings(deadline=None)
def test_a_request_has_the_same_answers_in_any_batch_and_order_of_candidates(data, sizes):
    case = Case(*zip(*sizes, strict=True))
    q, k, v = drawn(case)
    form = Pointwise("silu", scale_out=0.5)
    asking, answering = offsets_of(case.counts).tolist(), offsets_of(case.lengths).tolist()
    together = gdpa(q, k, v, offsets_of(case.counts), offsets_of(case.lengths), form=form)
    for (start, stop), (first, last) in zip(pairwise(asking), pairwise(answering), strict=True):
        order = data.draw(st.permutations(range(start, stop)))
        own = offsets_of((stop - start,)), offsets_of((last - first,))
        alone = gdpa(q[order], k[first:last], v[first:last], *own, form=form)
        close(alone, together[order])


@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=12),
    small=st.sampled_from([0, 400, 10**6]),
    scores=st.sampled_from([40, 400, 10**6]),
    window=st.none() | st.integers(0, 8),
)
def test_tiles_have_each_pair_of_a_request_once_and_no_other(sizes, small, scores, window):
    if window is not None:
        sizes = [(length, length) for _, length in sizes]
    query_offsets, key_offsets = (offsets_of([size[side] for size in sizes]) for side in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "SMALL_ROWS", small)
        patch.setattr(tiles, "TILE_SCORES", scores)
        cut = tiles.tiles_of(query_offsets, key_offsets, heads=2, head_width=4, window=window)
    seen = [pair for tile in cut for pair in pairs_of(tile)]
    starts = zip(query_offsets.tolist(), key_offsets.tolist(), sizes, strict=False)
    wanted = [
        (q + i, k + j)
        for q, k, (count, length) in starts
        for i in range(count)
        for j in range(length)
        if window is None or abs(i - j) <= window
    ]
    assert sorted(seen) == sorted(wanted)


def pairs_of(tile):
    queries, keys = (
        torch.arange(places.start, places.stop)[None] if isinstance(places, slice) else places
        for places in (tile.queries, tile.keys)
    )
    least, most = tile.band or (-math.inf, math.inf)
    for row in range(len(queries)):
        for i, query in enumerate(queries[row].tolist()):
            for j, key in enumerate(keys[row].tolist()):
                if query >= 0 and key >= 0 and least <= j - i <= most:
                    yield query, key


def test_a_window_costs_what_it_sees_not_the_square_of_the_history():
    """Scores that are computed, of 4,096 events with 32 on each side: the issue of a window is its cost."""
    offsets = offsets_of((4096,))
    cut = tiles.tiles_of(offsets, offsets, heads=2, head_width=32, window=32)
    computed = sum(
        (tile.queries.stop - tile.queries.start) * (tile.keys.stop - tile.keys.start)
        for tile in cut
        if isinstance(tile.queries, slice) and isinstance(tile.keys, slice)
    )
    assert computed <= 2 * 4096 * 65


def test_scale_inside_and_outside_are_one_for_relu_and_two_for_silu():
    case = Case((3,), (4,))
    tensors, offsets = drawn(case), (offsets_of(case.counts), offsets_of(case.lengths))

    def of(activation, scale):
        form = pointwise(KEY_WIDTH, 7, activation=activation, scale=scale)
        return gdpa(*tensors, *offsets, form=form).detach()

    close(of("relu", "inside"), of("relu", "outside"))
    assert not torch.allclose(of("silu", "inside"), of("silu", "outside"), rtol=0.1)


def test_what_it_keeps_for_the_way_back_grows_with_the_rows_not_with_the_scores():
    case = Case((300,), (300,))
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        GdpaCpu.apply(*drawn(case), offsets_of(case.counts), offsets_of(case.lengths), Pointwise())
    assert sum(sizes) == 300 * HEADS * (2 * KEY_WIDTH + VALUE_WIDTH)
