"""Functions and optimizers against outputs, gradients and steps that PyTorch recorded."""

import numpy as np
import pytest

import mnpar
import mnpar.links as L
from tests.golden.optimizers import evaluate_optimizer
from tests.golden.pytorch import FUNCTIONS, OPTIMIZERS
from tests.golden.recording import (
    compare,
    differentiate,
    evaluate_function,
    inputs,
    load,
    numbered,
)

OF_FUNCTIONS = load("pytorch_functions")
OF_OPTIMIZERS = load("pytorch_optimizers")


@pytest.mark.usefixtures("debug_off")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_and_gradients_are_pytorchs(name):
    _, call, *_ = FUNCTIONS[name]
    case = OF_FUNCTIONS[name]
    compare(case, evaluate_function(mnpar, call, inputs(case)))


def test_attention_of_several_heads_is_pytorchs():
    case = OF_FUNCTIONS["multi_head_attention_forward"]
    x, *given = inputs(case)
    with mnpar.using_config("dtype", np.dtype("f8")):
        layer = L.MultiHeadAttention(2, 6, causal=True)
    parameters = layer.W_qkv, layer.b_qkv, layer.W_out, layer.b_out
    for parameter, value in zip(parameters, given, strict=True):
        parameter.array[...] = value.reshape(parameter.shape)
    x = mnpar.Variable(x)
    ys = differentiate(mnpar, layer(x))
    grads = [
        parameter.grad.reshape(value.shape)
        for parameter, value in zip(parameters, given, strict=True)
    ]
    compare(case, numbered("y", ys) | numbered("gx", [x.grad, *grads]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_after_each_step_are_pytorchs(name):
    _, make, _, changes, *hooks = OPTIMIZERS[name]
    arrays = inputs(OF_OPTIMIZERS["inputs"])
    compare(OF_OPTIMIZERS[name], evaluate_optimizer(mnpar, arrays, make, changes, *hooks))
