"""Products whose derivatives are no quotients, rows that are added up, and whose memory a gradient
is.
"""

from __future__ import annotations

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.gradient_check import check_backward, check_double_backward

WITH_ZEROS = {
    "none": [2.0, -3.0, 0.5, 1.5],
    "one": [2.0, 0.0, -3.0, 0.5],
    "two": [2.0, 0.0, -3.0, 0.0],
    "the first": [0.0, 2.0, 3.0, 4.0],
}


@pytest.mark.parametrize("numbers", WITH_ZEROS.values(), ids=WITH_ZEROS)
@pytest.mark.parametrize("function", [F.prod, F.cumprod])
def test_the_product_rule_holds_where_numbers_are_0(function, numbers):
    x = np.array([numbers, [1.0, 2.0, 3.0, 4.0]])
    gy = np.random.default_rng(0).standard_normal(function(x, axis=1).shape)
    check_backward(lambda x: function(x, axis=1), (x,), (gy,), eps=1e-4, atol=1e-8, rtol=1e-6)
    check_double_backward(
        lambda x: function(x, axis=1),
        (x,),
        (gy,),
        (np.ones_like(x),),
        eps=1e-4,
        atol=1e-7,
        rtol=1e-6,
    )


@pytest.mark.usefixtures("debug_off")
def test_a_product_that_overflows_has_the_gradients_that_do_not():
    x = mnpar.Variable(np.array([1e200, 1e200, 1e-300]))
    with np.errstate(over="ignore"):
        F.prod(x).backward()
    np.testing.assert_allclose(x.grad[:2], [1e-100, 1e-100])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("rows", [[3, 0, 1], [2, 2, 2, 0], [], [-1, 3, 1, 1]], ids=str)
def test_the_gradient_of_rows_is_the_sum_of_what_each_was_picked_for(rows, dtype):
    x = mnpar.Variable(np.zeros((4, 3), dtype))
    rows = np.array(rows, "i4")
    gy = np.arange(len(rows) * 3).reshape(-1, 3).astype(dtype)
    y = x[rows]
    y.grad = gy
    y.backward()
    expected = np.zeros((4, 3))
    for row, g in zip(rows, gy, strict=True):
        expected[row] += g
    np.testing.assert_array_equal(x.grad, expected)


VIEWS = {
    "add": lambda x, y: x + y,
    "reshaped": lambda x, y: x + F.reshape(y, (2, 3)),
    "turned": lambda x, y: x + F.transpose(y.reshape(3, 2)),
    "flipped": lambda x, y: F.flip(x, 0) + F.flip(y, 1),
    "joined": lambda x, y: F.concat((x, y)),
    "joined turned": lambda x, y: F.transpose(F.concat((x, y))),
    "broadcast": lambda x, y: F.broadcast_to(F.sum(x), (2, 3)) + F.sum(y),
    "the same twice": lambda x, y: x + x + y,
}


@pytest.mark.parametrize("function", VIEWS.values(), ids=VIEWS)
def test_gradients_share_memory_with_nothing(function):
    x = mnpar.Variable(np.ones((2, 3)))
    y = mnpar.Variable(np.ones((2, 3)))
    z = function(x, y)
    z.grad = np.arange(float(z.size)).reshape(z.shape)
    z.backward()
    w = function(x * 1, y * 1) * 1  # what comes back is nobody else's
    w.grad = z.grad
    w.backward()
    arrays = [x.grad, y.grad, z.grad]
    assert all(a.flags.writeable for a in arrays)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_a_view_of_a_gradient_that_nobody_else_has_is_not_copied():
    x = mnpar.Variable(np.zeros((1000, 100)))
    y = F.transpose(x) * 2
    y.grad = np.ones((100, 1000))
    y.backward()
    assert x.grad.base is not None
    assert x.grad.base.size == x.size


def test_parts_go_back_into_the_order_that_they_came_from():
    """The gradient of an array that was turned round and taken apart is one array in its order:
    nothing is left to copy.
    """
    x = mnpar.Variable(np.arange(24.0).reshape(2, 3, 4))
    q, k, v = F.separate(F.transpose(x, (1, 2, 0)))
    F.sum(q * 1 + k * 2 + v * 3).backward()
    np.testing.assert_array_equal(x.grad, np.ones((2, 3, 4)) * np.array([1.0, 2.0, 3.0])[:, None])
    assert x.grad.flags.c_contiguous
