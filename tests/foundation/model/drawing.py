"""What the model's tests share: tensors and parameters that are drawn, and trainers whose scores show every part."""

import torch

from foundation.training.trainer import Trainer, TrainerConfig

FLOAT32 = 2e-5  # logits of size one; a batch of another shape lets the matrix products sum in another order
RATES = TrainerConfig(dense_learning_rate=1e-3, table_learning_rate=1e-2)

GEM = {
    "gem": {},
    "merged": {"histories": "merged"},
    "events as they are": {"interleaved_layers": 0},
    "windowed, every second round skips": {"window": 2, "compute_skip": True, "scale": "inside", "activation": "gelu"},
    "activations made again": {"checkpoint_activations": True},
    "rotary on log age, CLS, factors": {"rotary": "log_age", "cls_tokens": 2, "personalisation": "vector"},
    "rotary on place, hierarchy, matrices, experts": {
        "rotary": "position",
        "pooling": "hierarchical",
        "personalisation": "matrix",
        "experts": 2,
    },
}


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(block, seed=0):
    """The block in float64 with every parameter drawn, so that none is at an accidental 0 or 1."""
    block = block.double()
    with torch.no_grad():
        for place, parameter in enumerate(block.parameters()):
            parameter.copy_(0.4 * drawn(*parameter.shape, seed=seed + place))
    return block


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def numpy_of(tensor):
    return tensor.detach().numpy()


def linear(layer, x):
    return x @ numpy_of(layer.weight).T + (0 if layer.bias is None else numpy_of(layer.bias))


def assert_same(got, expected, tolerance=FLOAT32):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def trainer_of(model, world):
    """Of parameters so large that every part of the model shows in the scores."""
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if not p.is_meta):
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return Trainer(model, world, RATES)
