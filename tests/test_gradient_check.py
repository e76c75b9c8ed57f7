"""The checkers find what is wrong, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import mnpar.functions as F
from mnpar.function_node import FunctionNode
from mnpar.gradient_check import (
    NondifferentiableError,
    check_backward,
    check_double_backward,
    numerical_grad,
)
from mnpar.parameter import Parameter
from mnpar.variable import Variable

X = np.array([0.3, -0.7, 1.1])
GY = np.array([1.0, -2.0, 0.5])
GGX = np.array([0.4, 0.6, -1.5])


class Wrong(FunctionNode):
    """Cubes, with one error in its derivatives."""

    def __init__(self, error):
        self.error = error

    def forward(self, x):
        self.retain_inputs((0,))
        return x**3

    def backward(self, gy):
        (x,) = self.get_retained_inputs()
        if self.error == "one element":
            return 3 * x**2 * gy * np.array([1, 1, 1.01])
        if self.error == "second order":
            return 3 * (x.array * x) * gy
        if self.error == "nothing":
            return None
        return 3 * x**2 * gy


def cube(error):
    return lambda x: Wrong(error).apply((x,))[0]


def test_a_right_backward_passes_both_orders():
    check_backward(cube(None), X, GY)
    check_double_backward(cube(None), X, GY, GGX)


@pytest.mark.parametrize("error", ["one element", "nothing"])
def test_a_wrong_gradient_is_found(error):
    with pytest.raises(AssertionError, match="finite differences"):
        check_backward(cube(error), X, GY)


def test_a_gradient_that_is_only_right_once_is_found():
    check_backward(cube("second order"), X, GY)
    with pytest.raises(AssertionError, match="the backward of"):
        check_double_backward(cube("second order"), X, GY, GGX)


def test_every_direction_finds_one_wrong_element():
    for seed in range(200):
        with pytest.raises(AssertionError):
            check_backward(cube("one element"), X, GY, rng=np.random.default_rng(seed))


def test_parameters_are_checked_and_left_as_they_were():
    W = Parameter(np.float32([[0.5, -1.0, 2.0]]))
    array = W.array
    right = lambda x: F.matmul(x, W, transb=True)
    check_backward(right, np.ones((2, 3), "f"), np.ones((2, 1), "f"), params=W, dtype="d")
    check_double_backward(
        right, np.ones((2, 3), "f"), np.ones((2, 1)), np.ones((2, 3)), W, np.ones((1, 3)), dtype="d"
    )
    assert W.array is array
    assert W.array.dtype == np.float32
    assert W.grad is None
    wrong = lambda x: F.matmul(x, Variable(W.array), transb=True)
    with pytest.raises(AssertionError):
        check_backward(wrong, np.ones((2, 3), "f"), np.ones((2, 1), "f"), params=W, dtype="d")


def test_integers_and_what_is_excluded_are_not_moved():
    t = np.array([0, 2])
    x = np.array([[0.1, 0.2, -1.0], [1.0, 0.4, 0.3]])
    check_backward(lambda x, t: F.softmax_cross_entropy(x, t), (x, t), None)
    half = lambda a, b: a * Variable(b.array)
    check_backward(half, (X, X), GY, no_grads=[False, True])
    with pytest.raises(AssertionError):
        check_backward(half, (X, X), GY)


def test_several_outputs_and_unused_ones_pass():
    check_backward(lambda x: (x * x, x**3), X, (GY, GGX))
    check_backward(lambda x: (x * x, x**3), X, (None, GGX))


@pytest.mark.parametrize(
    ("y_grad", "words"),
    [(None, "y_grad is None"), (np.ones(2), r"shapes \[\(2,\)\]"), ((GY, GY), "y_grad has shapes")],
)
def test_wrong_output_gradients_are_named(y_grad, words):
    with pytest.raises(ValueError, match=words):
        check_backward(F.exp, X, y_grad)


def test_nothing_to_check_is_an_error():
    with pytest.raises(ValueError, match="nothing to check"):
        check_backward(lambda t: t, np.array([1, 2]), np.array([1, 2]))


def test_kinks_are_found_and_smooth_places_are_none():
    check_backward(F.relu, X, GY, detect_nondifferentiable=True)
    check_backward(F.exp, X, GY, detect_nondifferentiable=True)
    with pytest.raises(NondifferentiableError, match="1 of"):
        check_backward(F.relu, np.array([0.3, 1e-5]), np.ones(2), detect_nondifferentiable=True)


def test_numerical_gradients_are_those_of_the_formula():
    x = X.copy()
    y = np.array(2.0)
    gx, gy = numerical_grad(lambda: (x**2 * y, x.sum()), (x, y), (GY, 10.0))
    np.testing.assert_allclose(gx, 2 * X * 2 * GY + 10, rtol=1e-6)
    np.testing.assert_allclose(gy, (X**2 * GY).sum(), rtol=1e-6)
    np.testing.assert_array_equal(x, X)
    with pytest.raises(NondifferentiableError):
        numerical_grad(lambda: abs(x - 0.3), (x,), (GY,), detect_nondifferentiable=True)
