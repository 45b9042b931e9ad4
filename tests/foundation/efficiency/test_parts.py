import pytest
import torch
from torch import nn

from foundation.efficiency.flops import counting_model, executed_flops
from foundation.efficiency.parts import StepClock, around, calls_of, forward_and_backward, parts_of
from foundation.model.inputs import to_tensors

CPU = torch.device("cpu")


@pytest.fixture
def called(schema, config, batch_of):
    model = counting_model(schema, config)
    batch = batch_of([3, 0, 5], [2, 1, 4])
    return model, batch, calls_of(model, lambda: model.of_batch(to_tensors(batch, CPU)))


def test_parts_do_not_lie_inside_each_other_and_hold_nearly_all_flops(called):
    model, batch, calls = called
    parts = parts_of(model, calls)
    assert parts
    assert not [(a, b) for a in parts for b in parts if a.startswith(f"{b}.")]
    by_part = executed_flops(model, batch).by_part
    assert sum(by_part.get(name, 0) for name in parts) > 0.9 * by_part[""]
    assert set(around(parts, calls)) <= set(calls) - set(parts)


def test_a_part_runs_alone_as_often_as_one_likes_and_leaves_no_gradient(called):
    model, _, calls = called
    for name in parts_of(model, calls):
        run = forward_and_backward(model.get_submodule(name), calls[name])
        run()
        run()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_part_alone_computes_the_gradients_of_its_inputs():
    linear = nn.Linear(2, 3)
    seen = []
    calls = calls_of(linear, lambda: linear(torch.ones(4, 2)))
    linear.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(grad_in[0]))
    forward_and_backward(linear, calls[""])()
    torch.testing.assert_close(seen[0], linear.weight.sum(0).expand(4, 2))


def test_hooks_on_the_parameters_of_the_model_do_not_see_a_part_alone():
    linear = nn.Linear(2, 3)
    linear.weight.register_post_accumulate_grad_hook(lambda parameter: pytest.fail("a rank would wait for others"))
    calls = calls_of(linear, lambda: linear(torch.ones(4, 2)))
    forward_and_backward(linear, calls[""])()


class Sleepless(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 1)])

    def forward(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


def test_the_clock_divides_a_step_without_counting_anything_twice(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr("foundation.efficiency.parts.now", lambda device: float(next(ticks)))
    model = Sleepless()
    optimizer = torch.optim.AdamW(model.parameters())
    clock = StepClock(model, optimizer, ["inner.0", "inner.1"])
    with clock.running():
        loss = clock.timed_loss(lambda out: out.sum())(model(torch.ones(1, 2)))
        loss.backward()
        optimizer.step()
    # The clock is read at: model 0, inner.0 1 and 2, inner.1 3 and 4, model 5, loss 6 and 7, optimizer 8 and 9.
    assert dict(clock.seconds) == {
        "inner.0": 1.0,
        "inner.1": 1.0,
        "model (the rest)": 3.0,
        "loss": 1.0,
        "backward, tables, clipping": 1.0,
        "dense optimizer": 1.0,
    }
    model(torch.ones(1, 2))
    assert next(ticks) == 10  # no hook is left
