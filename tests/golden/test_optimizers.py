"""Optimizers and hooks against the parameters that Chainer 7.8.1 recorded after each step."""

import numpy as np
import pytest

import mnpar
from tests.golden.optimizers import OPTIMIZERS, evaluate_optimizer
from tests.golden.recording import inputs, load

RECORDED = load("chainer_optimizers")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_after_each_step_are_chainers(name):
    values = evaluate_optimizer(mnpar, inputs(RECORDED["inputs"]), *OPTIMIZERS[name])
    for key, value in RECORDED[name].items():
        np.testing.assert_allclose(values[key], value, rtol=1e-12, atol=1e-13, err_msg=key)
