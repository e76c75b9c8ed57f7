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


# ---- functions that communicate: all ranks check together ----


def square_of_sum(comm):
    return lambda x: F.allreduce(comm, x) ** 2


class WrongSum(FunctionNode):
    """A sum over ranks that passes its own gradient back, which is not all of it."""

    def __init__(self, comm):
        self.comm = comm

    def forward(self, x):
        return self.comm.allreduce(x)

    def backward(self, gy):
        return gy


def mine(comm):
    """This rank's input and gradient of an output, of another size on each rank where that may
    be.
    """
    return X[:2] + 0.1 * comm.rank, GY[:2] * (1 + comm.rank)


COMMUNICATING = {
    "allreduce": square_of_sum,
    "scan": lambda comm: lambda x: F.scan(comm, x**2) ** 2,
    "shift": lambda comm: lambda x: F.shift(comm, x) * x,
    "reduce_scatter": lambda comm: lambda x: F.reduce_scatter(comm, [x**2] * comm.size) * x,
}


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("make", COMMUNICATING.values(), ids=COMMUNICATING)
def test_functions_that_communicate_are_checked_on_all_ranks_in_both_orders(comm, make):
    x, gy = mine(comm)
    check_backward(make(comm), x, gy, comm=comm)
    check_double_backward(make(comm), x, gy, 0.3 * x, comm=comm)


@pytest.mark.ranks(2, 3)
def test_a_wrong_gradient_over_ranks_is_found_on_all_of_them(comm):
    x, gy = mine(comm)
    with pytest.raises(AssertionError, match=f"summed over {comm.size} ranks, finite differences"):
        check_backward(lambda x: WrongSum(comm).apply((x,))[0] ** 2, x, gy, comm=comm)


@pytest.mark.ranks(2, 3)
def test_ranks_without_inputs_or_outputs_take_part(comm):
    def passed_on(*xs):
        if comm.rank == 0:
            return F.send(xs[0] ** 2, comm, rank=1)
        return F.recv(comm, rank=0) ** 2 if comm.rank == 1 else None

    x, gy = mine(comm)
    given = x if comm.rank == 0 else ()
    check_backward(passed_on, given, gy if comm.rank == 1 else (), comm=comm)
    check_double_backward(passed_on, given, gy if comm.rank == 1 else (), given, comm=comm)


@pytest.mark.ranks(2, 3)
def test_numerical_gradients_are_those_of_the_sum_over_ranks(comm):
    x, gy = mine(comm)
    (g,) = numerical_grad(lambda: comm.allreduce(x) ** 2, [x], [gy], comm=comm)
    total = comm.allreduce(gy) * 2 * comm.allreduce(x)
    np.testing.assert_allclose(g, total, rtol=1e-6)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("check", [check_backward, check_double_backward])
def test_a_local_check_refuses_functions_that_communicate(comm, check):
    x, gy = mine(comm)
    more = (x,) if check is check_double_backward else ()
    with pytest.raises(ValueError, match=r"communicates \(.*allreduce at .*comm=comm"):
        check(square_of_sum(comm), x, gy, *more)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.ranks(2, 3)
def test_what_ranks_own_together_counts_once(comm):
    W = Parameter(X[:2] * (1 + comm.rank))
    layer = lambda x: F.reduce_from(comm, F.sum(F.tanh(F.copy_to(comm, x) * W)))
    x, once = np.array([0.4, -0.2]), {"replicated": [True, False], "replicated_outputs": [True]}
    check_backward(layer, x, np.array(1.5), W, comm=comm, **once)
    forgotten = lambda x: F.reduce_from(comm, F.sum(F.tanh(x * W)))
    with pytest.raises(AssertionError):
        check_backward(forgotten, x, np.array(1.5), W, comm=comm, **once)
    with pytest.raises(ValueError, match="another on rank 1 than on rank 0"):
        check_backward(layer, x + comm.rank, np.array(1.5), W, comm=comm, **once)
