"""Functions against the outputs and gradients that Chainer 7.8.1 recorded of the same calls."""

import functools

import numpy as np
import pytest

import mnpar
from tests.golden import functions
from tests.golden.recording import evaluate_function, inputs, load

ROWS = [
    pytest.param(family, name, row[0], id=name)
    for family, rows in functions.FAMILIES.items()
    for name, row in rows.items()
]
load = functools.cache(load)


@pytest.mark.parametrize(("family", "name", "call"), ROWS)
def test_outputs_and_gradients_are_chainers(family, name, call):
    case = load(f"chainer_{family}")[name]
    values = evaluate_function(mnpar, call, inputs(case))
    assert values.keys() >= {key for key in case if key[0] != "x"}
    for key in values.keys() & case.keys():
        np.testing.assert_allclose(values[key], case[key], rtol=1e-11, atol=1e-12, err_msg=key)
