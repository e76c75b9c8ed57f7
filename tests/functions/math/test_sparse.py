"""Sparse matrices beside dense ones: there and back, in any order, with entries of one place and
entries of none.
"""

import numpy as np
import pytest
from mnpar.utils import CooMatrix, get_order, to_coo

import mnpar.functions as F
from mnpar.variable import Variable

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("room", [None, 2, 30])
@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (0, 4, 5)])
def test_a_dense_matrix_comes_back(shape, room):
    x = RNG.standard_normal(shape) * (RNG.random(shape) < 0.4)
    sparse = to_coo(x, room)
    assert sparse.data.shape[-1] >= (room or 0)
    assert sparse.order == "C"
    np.testing.assert_array_equal(sparse.to_dense(), x)


@pytest.mark.parametrize(
    ("row", "col", "order"),
    [([0, 0, 1], [0, 2, 1], "C"), ([1, 0, 1], [0, 1, 1], "F"), ([1, 0, 1], [1, 1, 0], "other")],
)
def test_the_order_of_entries_is_seen(row, col, order):
    assert get_order(np.array(row), np.array(col)) == order
    assert get_order(np.array([[*row, -1]]), np.array([[*col, -1]])) == order


def test_gradients_go_to_the_entries_if_they_are_asked_for():
    x, y = RNG.standard_normal((2, 3, 3))
    for wanted in (True, False):
        sparse = to_coo(x, requires_grad=wanted)
        F.sum(F.sparse_matmul(sparse, y)).backward()
        if wanted:
            np.testing.assert_allclose(sparse.data.grad, np.tile(y.sum(1), 3))
        else:
            assert sparse.data.grad is None


def test_gradients_flow_on_through_entries_that_were_computed():
    v = Variable(np.array([1.0, 2.0]))
    sparse = CooMatrix(v * v, np.array([0, 1]), np.array([1, 1]), (2, 2))
    F.sum(F.sparse_matmul(np.ones((1, 2)), sparse)).backward()
    assert v.grad.tolist() == [2, 4]


def test_halves_are_added_up_in_float32():
    ones = np.ones((1, 5000), "f2")
    assert F.sparse_matmul(to_coo(ones), ones, transb=True).item() == 5000


ONE = np.array([1.0]), np.array([0]), np.array([0])
BAD = {
    "places": (lambda: CooMatrix(np.ones(2), *ONE[1:], (2, 2)), r"are not all \(E,\)"),
    "shape": (lambda: CooMatrix(*ONE, (2,)), "not two lengths"),
    "order": (lambda: CooMatrix(*ONE, (2, 2), "rows"), "order 'rows'"),
    "outside": (
        lambda: CooMatrix(np.ones(1), np.array([2]), np.array([0]), (2, 2)),
        "a row is outside the 2",
    ),
    "half a place": (
        lambda: CooMatrix(np.ones(1), np.array([-1]), np.array([0]), (2, 2)),
        "both are -1",
    ),
    "axes": (lambda: to_coo(np.ones(3)), r"x of shape \(3,\)"),
    "none sparse": (
        lambda: F.sparse_matmul(np.ones((2, 2)), np.ones((2, 2))),
        "not ndarray and ndarray",
    ),
    "both sparse": (
        lambda: F.sparse_matmul(CooMatrix(*ONE, (2, 2)), CooMatrix(*ONE, (2, 2))),
        "one of the two",
    ),
    "product": (
        lambda: F.sparse_matmul(CooMatrix(*ONE, (2, 2)), np.ones((3, 2))),
        r"\(2, 2\) and \(3, 2\)",
    ),
}


@pytest.mark.parametrize(("call", "words"), BAD.values(), ids=BAD)
def test_what_does_not_belong_together_is_told(call, words):
    with pytest.raises(ValueError, match=words):
        call()
