"""The stand-in refuses what CuPy 14 refuses, and is silent where that is.

Each line was tried on CuPy's own arrays in memory of the host, as far as they get there: up to the
start of a kernel.
"""

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("device")
REFUSED = {
    "an array of numpy's in an operator": (lambda xp, x: x + np.ones(3), TypeError),
    "one of no axes": (lambda xp, x: x * np.ones(()), TypeError),
    "a copy to the host that nobody asked for": (lambda xp, x: np.asarray(x), TypeError),
    "into an array of numpy's": (lambda xp, x: np.ones((2, 3)).__setitem__(..., x), TypeError),
    "an array of numpy's assigned to a view": (
        lambda xp, x: x.__setitem__(0, np.ones(3)),
        ValueError,
    ),
    "where of ufuncs": (lambda xp, x: xp.add(x, x, where=x > 0), TypeError),
    "where of sums": (lambda xp, x: xp.sum(x, where=True), TypeError),
    "initial": (lambda xp, x: x.max(initial=0), TypeError),
    "out of einsum": (lambda xp, x: xp.einsum("ij,ij->i", x, x, out=x), TypeError),
    "reductions of ufuncs": (lambda xp, x: xp.maximum.reduce(x), NotImplementedError),
    "additions to int64": (lambda xp, x: xp.add.at(x.astype("i8"), xp.arange(2), 1), TypeError),
    "casting of astype": (lambda xp, x: x.astype("f4", casting="safe"), TypeError),
    "objects": (lambda xp, x: xp.empty(3, object), ValueError),
    "a 0-d array as a number": (lambda xp, x: range(x.sum()), TypeError),
    "a 0-d array as a size": (lambda xp, x: xp.zeros(x.sum().astype(int)), TypeError),
    "a condition that is no array": (lambda xp, x: xp.where(True, x, x), AttributeError),
    "numbers to be searched for": (
        lambda xp, x: xp.searchsorted(x[0], np.ones(3)),
        NotImplementedError,
    ),
    "what numpy alone has": (lambda xp, x: xp.vecdot(x, x), AttributeError),
    "flags that it does not have": (lambda xp, x: x.flags.writeable, AttributeError),
    "hashes": (lambda xp, x: hash(x), TypeError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(device, what):
    call, error = REFUSED[what]
    with pytest.raises(error):
        call(device, device.arange(6.0).reshape(2, 3))


def test_it_is_silent_where_cupy_is(device):
    x = device.arange(3.0)
    assert x[device.asarray([5])].tolist() == [2]  # wraps
    assert np.isnan(device.linalg.cholesky(-device.eye(2)).get()).all()
    assert np.isnan(device.empty(2).get()).all()
    assert isinstance(x.sum(), device.ndarray)
    assert isinstance(x[0], device.ndarray)
    assert isinstance(np.exp(x), device.ndarray)  # numpy asks it first
    assert (x + np.float64(1)).tolist() == [1, 2, 3]
    assert device.exp(device.ones((2, 3)).T).flags.c_contiguous
