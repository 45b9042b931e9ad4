"""Numeric features against the formula in Python's floats."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from serving.numbers import TRANSFORMS, NumberRule, encode_numbers

FORMULAS = {
    "identity": lambda x: x,
    "log1p": lambda x: math.copysign(math.log1p(abs(x)), x),
}

rules = st.builds(
    NumberRule,
    transform=st.sampled_from(sorted(TRANSFORMS)),
    shift=st.floats(-1e6, 1e6),
    scale=st.floats(1e-6, 1e6),
    clip=st.floats(1e-3, 1e6),
    missing=st.floats(-1e-3, 1e-3),
)


def slow(value, rule):
    if not math.isfinite(value):
        return rule.missing
    x = FORMULAS[rule.transform](value)
    return min(max((x - rule.shift) / rule.scale, -rule.clip), rule.clip)


def test_a_rule_names_every_transform_and_no_other():
    assert set(get_args(NumberRule.model_fields["transform"].annotation)) == set(TRANSFORMS)


@given(st.lists(st.floats()), rules)
def test_numbers_are_the_formula(values, rule):
    found = encode_numbers(np.array(values, dtype=np.float64), rule)
    assert found.dtype == np.float32
    # numpy's log1p may differ from the C library's in the last digit, which shift and a small scale magnify
    margin = 1e-9 * (1 + abs(rule.shift)) / rule.scale
    for value, expected in zip(found.tolist(), (slow(value, rule) for value in values), strict=True):
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-7 + margin)


@given(st.lists(st.floats()), rules)
def test_model_inputs_are_finite_and_clipped(values, rule):
    found = encode_numbers(np.array(values, dtype=np.float64), rule)
    assert (np.abs(found) <= np.float32(rule.clip)).all()


def test_an_overflow_is_clipped_and_not_reported():
    assert encode_numbers(np.array([1e308]), NumberRule(scale=1e-10)).tolist() == [10.0]


@pytest.mark.parametrize(
    "field", [{"scale": 0.0}, {"scale": math.inf}, {"shift": math.nan}, {"clip": 0.0}, {"power": 2}]
)
def test_malformed_rules_are_refused(field):
    with pytest.raises(ValidationError):
        NumberRule(**field)


def test_what_stands_for_a_missing_number_lies_where_models_look():
    assert encode_numbers(np.array([math.nan]), NumberRule(missing=-10.0)).tolist() == [-10.0]
    with pytest.raises(ValidationError, match=r"`missing` from -2 to 2.*got -3"):
        NumberRule(clip=2.0, missing=-3.0)
