"""Learning rates over a pass: the right factor at every step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.training.rates import constant, cooldown, inverse_root


@given(steps=st.integers(1, 1000), step=st.integers(0, 10**6), total=st.integers(1, 10**6))
def test_the_inverse_root_halves_at_three_times_its_steps_and_knows_no_end(steps, step, total):
    rate = inverse_root(steps)
    assert rate(0, total) == constant(step, total) == 1
    assert rate(3 * steps, total) == pytest.approx(0.5)
    assert rate(step, total) == rate(step, 2 * total)
    assert 0 < rate(step + 1, total) < rate(step, total) <= 1


@given(share=st.floats(0, 1), total=st.integers(1, 1000), data=st.data())
def test_a_cooldown_falls_to_zero_over_its_share_alone(share, total, data):
    step = data.draw(st.integers(0, total - 1))
    factor = cooldown(share)(step, total)
    left = (total - step) / total
    assert factor == pytest.approx(1 if left >= share else left / share)
