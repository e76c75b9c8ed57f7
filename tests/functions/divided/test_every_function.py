"""Every function of the table of cases on divided arrays: what one process computes, outputs and
gradients, or a LayoutError; never anything else.
"""

import functools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.errors import LayoutError
from tests.functions.cases import CASES

SAMPLES = 3
TESTED = [case for case in CASES if case.arrays(SAMPLES)]


def several(ys):
    return ys if isinstance(ys, tuple | list) else (ys,)


def whole(y):
    return y if y.layout is None else y.gather()


def computed(case, comm=None, divided=(), axis=0):
    """Outputs and gradients; some inputs are cut along an axis."""
    mnpar.random.seed(5)
    inputs = [mnpar.Variable(x) for x in case.arrays(SAMPLES)]
    cut = list(inputs)
    for i in divided:
        cut[i] = mnpar.divided(inputs[i], mnpar.SpatialGrid(comm, (comm.size,)), (axis,))
    found = several(case.call(*cut))
    ys = [whole(y) for y in found if isinstance(y, mnpar.Variable)]
    rng = np.random.default_rng(1)
    terms = [
        F.sum(y * rng.standard_normal(y.shape))
        for y in ys
        if y.requires_grad and y.dtype.kind == "f"
    ]
    mnpar.backward(terms)
    return [y.array for y in ys], [x.grad for x in inputs]


def result_of(case, divided, axis, comm):
    return computed(case, comm, divided, axis)


def differs(found, expected):
    if found is None or expected is None:
        rest = found if expected is None else expected
        return rest is not None and np.any(rest)
    return (
        found.shape != expected.shape
        or found.dtype != expected.dtype
        or not np.allclose(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    )


def ways(case):
    """Which inputs are divided, and along which axis: each alone, and all of one shape."""
    arrays = case.arrays(SAMPLES)
    for i, x in enumerate(arrays):
        for axis in range(x.ndim):
            yield (i,), axis
    alike = tuple([i for i, x in enumerate(arrays) if x.shape == arrays[0].shape])
    if len(alike) > 1:
        for axis in range(arrays[0].ndim):
            yield alike, axis


@pytest.mark.filterwarnings("ignore")  # of numpy, about zeros in powers
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", TESTED, ids=lambda case: case.id)
def test_a_divided_input_gives_the_result_of_one_process_or_a_layout_error(case, ranks):
    expected = computed(case)
    for divided, axis in ways(case):
        try:
            results = mnpar.run(functools.partial(result_of, case, divided, axis), ranks=ranks)
        except LayoutError:
            continue
        for result in results:
            for found, right in zip(result, expected, strict=True):
                assert len(found) == len(right)
                assert not any(map(differs, found, right)), (divided, axis)
