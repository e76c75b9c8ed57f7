"""Functions and optimizers against outputs, gradients and steps that PyTorch recorded."""

import pytest

import mnpar
from tests.golden.optimizers import evaluate_optimizer
from tests.golden.pytorch import FUNCTIONS, OPTIMIZERS
from tests.golden.recording import compare, evaluate_function, inputs, load

OF_FUNCTIONS = load("pytorch_functions")
OF_OPTIMIZERS = load("pytorch_optimizers")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_and_gradients_are_pytorchs(name):
    _, call, *_ = FUNCTIONS[name]
    case = OF_FUNCTIONS[name]
    compare(case, evaluate_function(mnpar, call, inputs(case)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_after_each_step_are_pytorchs(name):
    _, make, _, changes, *hooks = OPTIMIZERS[name]
    arrays = inputs(OF_OPTIMIZERS["inputs"])
    compare(OF_OPTIMIZERS[name], evaluate_optimizer(mnpar, arrays, make, changes, *hooks))
