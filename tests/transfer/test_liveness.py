"""A distillation that silently does nothing is an error."""

import pytest
import torch

from serving.errors import UserError
from transfer.liveness import RECENT_STEPS, LossRecorder, recent


def recorder(losses, num_rows=10, num_soft_rows=10):
    found = LossRecorder()
    found.count(num_rows, num_soft_rows)
    found.distillation = [torch.tensor(loss) for loss in losses]
    return found


@pytest.mark.parametrize("losses", [[0.5, 0.4], [0.5], [0.5] * RECENT_STEPS + [0.4], [0.0, 0.0, 0.1]])
def test_a_loss_that_moves_is_alive(losses):
    recorder(losses).check_alive("here")


@pytest.mark.parametrize(
    "losses", [[0.0, 0.0], [0.7, 0.7, 0.7], [0.5, float("nan")], [float("inf"), 0.5], [0.5, 0.4] + [0.0] * RECENT_STEPS]
)
def test_a_loss_that_stands_still_or_is_no_number_is_refused(losses):
    with pytest.raises(UserError) as caught:
        recorder(losses).check_alive("placement x: transfer.soft_labels")
    (problem,) = caught.value.problems
    assert problem.where == "placement x: transfer.soft_labels"
    assert f"{losses[-1]:g} on" in problem.got


def test_no_row_with_a_soft_label_is_refused():
    with pytest.raises(UserError, match="none of 1,234 rows"):
        recorder([0.1, 0.2], num_rows=1234, num_soft_rows=0).check_alive("here")


def test_a_recorder_goes_on_where_it_was_saved():
    first = recorder([0.5, 0.25], num_rows=8, num_soft_rows=6)
    first.label.append(torch.tensor(0.75))
    second = LossRecorder()
    second.load(first.state())
    assert second.state() == first.state()
    assert second.coverage == 0.75
    assert LossRecorder().coverage == 0


def test_recent_is_the_mean_of_the_newest_steps():
    assert recent([100.0] + [2.0] * RECENT_STEPS) == 2
    assert recent([1.0, 2.0]) == 1.5
    assert recent([]) != recent([]), "NaN where there is none"
