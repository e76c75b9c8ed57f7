"""Every row of the table with its arrays on a device: the numbers are the host's, and so are
gradients of two orders.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from mnpar.variable import Variable, backward, grad
from tests.functions import cases
from tests.harness.cupy.moving import moved
from tests.harness.cupy.stand_in import cupy
from tests.harness.tables import try_all

PARTS = 8  # of the table: a test each, for the processes to share
# the first takes an order that is on the host, the second gives an array that is
STAYS = {
    "permute_rows",
    "copy",
}


def pytest_generate_tests(metafunc):
    if "kinds" in metafunc.fixturenames:
        plain = [(3, "f8")]
        sweep = [(n, dtype) for n in (4, 1, 0) for dtype in ("f8", "f4", "f2")]
        metafunc.parametrize(
            "kinds", [sweep if metafunc.config.getoption("--sweep") else plain], ids=[""]
        )


def results(case, call, put, arrays, gys, gxs):
    """Values; gradients, recorded; gradients of those; and gradients as backward leaves them."""
    xs = [Variable(put(x)) for x in arrays]
    ys = call(*xs)
    ys = ys if isinstance(ys, tuple) else (ys,)
    found = [y.array for y in ys]
    if case.differentiable:
        once = grad(ys, xs, [Variable(put(gy)) for gy in gys], enable_double_backprop=True)
        twice = [
            (g, put(gx))
            for g, gx in zip(once, gxs, strict=True)
            if g is not None and g.requires_grad
        ]
        found += [getattr(g, "array", None) for g in once]
        if twice:
            gradients = grad([g for g, _ in twice], xs, [Variable(gx) for _, gx in twice])
            found += [getattr(g, "array", None) for g in gradients]
        backward(ys, [Variable(put(gy)) for gy in gys])
        found += [x.grad for x in xs]
    return found


def the_device_gives_the_same(case, n, dtype):
    arrays = case.arrays(n, dtype)
    rng = np.random.default_rng(1)
    shapes = [np.shape(y) for y in _tuple(case.truth(*case.arrays(n)))]
    gys, gxs = (
        [rng.standard_normal(shape).astype(dtype) for shape in each]
        for each in (shapes, [x.shape for x in arrays])
    )
    expected = results(case, case.call, np.array, arrays, gys, gxs)
    call = case.call if case.id in STAYS else moved(case.call)
    tolerance = {"f8": 1e-11, "f4": 1e-4, "f2": 3e-1}[dtype]
    for y, e in zip(results(case, call, cupy.asarray, arrays, gys, gxs), expected, strict=True):
        assert (y is None) == (e is None)
        if y is None:
            continue
        assert isinstance(y, cupy.ndarray) or case.id == "copy"
        assert (y.dtype, y.shape) == (e.dtype, e.shape)
        np.testing.assert_allclose(cupy.asnumpy(y), e, rtol=tolerance, atol=tolerance)


def _tuple(y):
    return y if isinstance(y, tuple) else (y,)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_row_is_the_same_on_a_device(part, kinds):
    calls = []
    for case in cases.CASES[part::PARTS]:
        for n, dtype in kinds:
            if n > 0 or case.empty:
                calls.append(
                    (
                        f"of {case.id}: {n} {dtype}",
                        functools.partial(the_device_gives_the_same, case, n, dtype),
                    )
                )
    try_all("the table", calls)
