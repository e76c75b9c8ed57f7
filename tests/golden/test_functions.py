"""Functions against the outputs and gradients that Chainer 7.8.1 recorded of the same calls."""

import functools

import pytest

import mnpar
from tests.golden import functions
from tests.golden.recording import compare, evaluate_function, inputs, load

ROWS = [
    pytest.param(family, name, row[0], id=name)
    for family, rows in functions.FAMILIES.items()
    for name, row in rows.items()
]
load = functools.cache(load)


@pytest.mark.parametrize(("family", "name", "call"), ROWS)
def test_outputs_and_gradients_are_chainers(family, name, call):
    case = load(f"chainer_{family}")[name]
    compare(case, evaluate_function(mnpar, call, inputs(case)))
