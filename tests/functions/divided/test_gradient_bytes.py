"""Bytes of halos, forward and backward: on each axis the range of cells on other ranks from the
first that an output reads to the last, and no more.
"""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F

# Cells, parts, kernel, stride, padding and dilation, on each axis. There are uneven and empty
# parts, strides and dilations that leave cells unread, and windows that reach over several ranks.
CASES = [
    ((12,), (3,), (3,), (1,), (1,), (1,)),
    ((13,), (3,), (5,), (1,), (2,), (1,)),
    ((13,), (2,), (4,), (2,), (1,), (1,)),
    ((17,), (4,), (3,), (2,), (0,), (2,)),
    ((16,), (3,), (2,), (3,), (2,), (2,)),
    ((14,), (3,), (3,), (1,), (3,), (3,)),
    ((7,), (4,), (3,), (1,), (2,), (2,)),
    ((9,), (4,), (3,), (1,), (4,), (4,)),
    ((11,), (4,), (2,), (3,), (0,), (1,)),
    ((5,), (4,), (3,), (1,), (1,), (1,)),
    ((2,), (3,), (3,), (1,), (1,), (1,)),
    ((9, 10), (2, 2), (3, 2), (2, 1), (1, 0), (2, 3)),
    ((7, 8), (2, 2), (3, 3), (2, 3), (2, 1), (2, 2)),
    ((6, 5, 4), (2, 1, 2), (2, 2, 2), (2, 1, 1), (1, 1, 0), (2, 1, 3)),
]
KINDS = ["convolution", "transposed", "maxima", "sums"]


def of_kind(kind, kernel, stride, pad, dilate):
    W = np.random.default_rng(1).standard_normal((2, 2, *kernel))
    return {
        "convolution": lambda x: F.convolution_nd(x, W, stride=stride, pad=pad, dilate=dilate),
        "transposed": lambda x: F.deconvolution_nd(x, W, stride=stride, pad=pad, dilate=dilate),
        "maxima": lambda x: F.max_pooling_nd(x, kernel, stride, pad, cover_all=False),
        "sums": lambda x: F.average_pooling_nd(x, kernel, stride, pad),
    }[kind]


def read_on(axis, kind, outputs, cells, kernel, stride, pad, dilate):
    """The cells of an axis that a range of outputs reads, one by one, and those from the first that
    a window reaches, padding included, to the last.
    """
    k, s, p, d = kernel[axis], stride[axis], pad[axis], dilate[axis]
    found, reached = set(), set()
    for o in outputs:
        for j in range(k):
            cell = o * s - p + j * d
            if kind == "transposed":
                cell, rest = divmod(o + p - j * d, s)
                if rest:
                    continue
            if 0 <= cell < cells:
                found.add(cell)
        if kind != "transposed":
            reached |= {*range(o * s - p, o * s - p + (k - 1) * d + 1)}
    if kind == "transposed":
        for cell in range(cells):
            if {*range(cell * s - p, cell * s - p + (k - 1) * d + 1)} & set(outputs):
                reached.add(cell)
    between = range(min(reached, default=0), max(reached, default=-1) + 1)
    return found, set(between) & set(range(cells))


def ranges(box):
    return [range(a, b) for a, b in zip(box.start[2:], box.stop[2:], strict=True)]


def measure(comm, call, dims, values):
    x = mnpar.SpatialGrid(comm, dims).cut(mnpar.Variable(values))
    call(x)  # the grid has met the shapes of all arrays
    before = comm.traffic.bytes
    y = call(x)
    forward = comm.traffic.bytes - before
    before = comm.traffic.bytes
    (g,) = mnpar.grad([F.sum(y * y)], [x])
    backward = comm.traffic.bytes - before
    return ranges(x.box), ranges(y.box), forward, backward, y.gather().array, g.gather().array


def cells_of_others(own, axes):
    return set(itertools.product(*axes)) - set(itertools.product(*own))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_halos_and_gradients_have_the_range_of_cells_that_are_read_and_no_more(case, kind):
    cells, dims, kernel, stride, pad, dilate = case
    if kind in ("maxima", "sums"):
        dilate = (1,) * len(cells)
        pad = tuple([min(p, k // 2) for p, k in zip(pad, kernel, strict=True)])
    call = of_kind(kind, kernel, stride, pad, dilate)
    values = np.random.default_rng(0).standard_normal((2, 2, *cells))
    x = mnpar.Variable(values)
    y = call(x)
    (g,) = mnpar.grad([F.sum(y * y)], [x])
    ranks = int(np.prod(dims))
    found = mnpar.run(lambda comm: measure(comm, call, dims, values), ranks=ranks)
    read, ranged = 0, 0
    for own, outputs, *_ in found:
        pairs = [
            read_on(axis, kind, o, cells[axis], kernel, stride, pad, dilate)
            for axis, o in enumerate(outputs)
        ]
        read += len(cells_of_others(own, [cell for cell, _ in pairs]))
        ranged += len(cells_of_others(own, [between for _, between in pairs]))
    size = 2 * 2 * 8  # two channels of two samples in float64
    assert sum([forward for _, _, forward, *_ in found]) == ranged * size
    assert sum([backward for *_, backward, _, _ in found]) == ranged * size
    if set(dilate) == {1} and all(np.less_equal(stride, kernel)):
        assert ranged == read  # nothing is between the cells
    for *_, whole, gradient in found:
        np.testing.assert_allclose(whole, y.array, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gradient, g.array, rtol=1e-12, atol=1e-12)
