import torch

from foundation.efficiency.padded import encoder_variants, padded_forward
from foundation.model.gdpa import pointwise
from foundation.model.hstu import HstuLayer

LENGTHS = torch.tensor([3, 0, 7, 1])
CLOSE = 1e-5  # float32 sums in another order


def test_padded_and_jagged_encoders_are_the_same_function():
    torch.manual_seed(0)
    layer = HstuLayer(8, 2, pointwise(4, 7))
    is_event = torch.arange(7) < LENGTHS[:, None]
    rows = torch.randn(4, 7, 8)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)])
    weights = torch.randn(int(LENGTHS.sum()), 8)
    found = []
    for forward in (lambda x: padded_forward(layer, x, is_event)[is_event], lambda x: layer(x[is_event], offsets)):
        x = rows.clone().requires_grad_()
        out = forward(x)
        layer.zero_grad()
        (out * weights).sum().backward()
        found.append([out.detach(), x.grad[is_event], layer.uvqk.weight.grad.clone()])
    for padded, jagged in zip(*found, strict=True):
        torch.testing.assert_close(padded, jagged, rtol=CLOSE, atol=CLOSE)


def test_each_variant_runs_more_than_once():
    variants = encoder_variants(LENGTHS, width=8, heads=2)
    assert list(variants) == ["padded", "padded, our kernel", "jagged"]
    for run in variants.values():
        run()
        run()
