"""The error function and gelu have the digits that their docstrings promise, far out too, in every
dtype.
"""

import math

import numpy as np
import pytest

import mnpar.functions as F
from mnpar.variable import Variable, grad

ERF = np.vectorize(math.erf, otypes=[float])
X = np.concatenate(
    [np.linspace(-6, 6, 24001), np.geomspace(1e-30, 1e30, 2001), [0.0, np.inf, -np.inf]]
)


@pytest.mark.parametrize(("dtype", "units"), [("f4", 3), ("f8", 3)])
def test_erf_is_good_to_a_few_units_of_its_last_digit(dtype, units):
    x = X.astype(dtype)
    expected = ERF(x.astype("d"))
    y = F.erf(x).array
    assert y.dtype == dtype
    assert (abs(y - expected) <= units * np.spacing(abs(expected).astype(dtype))).all()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_neither_overflows_nor_warns_and_its_slope_goes_from_0_to_1(approximate):
    x = Variable(np.array([-1e30, -30, 0, 30, 1e30], "f4"))
    y = F.gelu(x, approximate)
    np.testing.assert_array_equal(y.array, [0, 0, 0, 30, x.array[-1]])
    (g,) = grad([F.sum(y)], [x])
    np.testing.assert_array_equal(g.array, [0, 0, 0.5, 1, 1])


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (200, 300)])
def test_blocks_of_all_sizes_are_put_together(shape):
    x = np.random.default_rng(0).standard_normal(shape)[..., ::-1] if shape else np.array(0.7)
    for dtype in ("f4", "f8"):
        v = Variable(x.astype(dtype))
        np.testing.assert_allclose(
            F.gelu(v).array, x * (1 + ERF(x / math.sqrt(2)) if x.size else 1) / 2, atol=1e-6
        )
        (g,) = grad([F.sum(F.gelu(v))], [v])
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        np.testing.assert_allclose(
            g.array, (1 + ERF(x / math.sqrt(2)) if x.size else 1) / 2 + x * density, atol=1e-6
        )


@pytest.mark.parametrize("function", [F.erf, F.gelu])
def test_what_lies_in_another_order_stays_in_it(function):
    """As linear layers of few rows hand it on: a gradient in either order is right."""
    x = np.random.default_rng(0).standard_normal((2, 3, 40))
    v = Variable(x.transpose(0, 2, 1))
    y = function(v)
    assert y.array.strides == v.array.strides
    np.testing.assert_allclose(y.array, function(np.ascontiguousarray(v.array)).array, rtol=1e-15)
    gy = np.random.default_rng(1).standard_normal(y.shape)
    (g,) = grad([y], [v], [Variable(gy)])
    (expected,) = grad(
        [function(w := Variable(np.ascontiguousarray(v.array)))], [w], [Variable(gy)]
    )
    np.testing.assert_allclose(g.array, expected.array, rtol=1e-14)
