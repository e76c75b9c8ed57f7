"""Bytes of halos, forward and backward: the cells on other ranks that outputs read, and no others,
whatever strides and dilations leave between them.
"""

import itertools

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.plans import Window, blocks, halo_plan

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
    """The cells of an axis that a range of outputs reads, one by one."""
    k, s, p, d = kernel[axis], stride[axis], pad[axis], dilate[axis]
    found = set()
    for o in outputs:
        for j in range(k):
            cell, rest = o * s - p + j * d, 0
            if kind == "transposed":
                cell, rest = divmod(o + p - j * d, s)
            if not rest and 0 <= cell < cells:
                found.add(cell)
    return found


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


def check_bytes(case, kind):
    cells, dims, kernel, stride, pad, dilate = case
    call = of_kind(kind, kernel, stride, pad, dilate)
    values = np.random.default_rng(0).standard_normal((2, 2, *cells))
    x = mnpar.Variable(values)
    y = call(x)
    (g,) = mnpar.grad([F.sum(y * y)], [x])
    found = mnpar.run(lambda comm: measure(comm, call, dims, values), ranks=int(np.prod(dims)))
    read = 0
    for own, outputs, *_ in found:
        wanted = [
            read_on(axis, kind, o, cells[axis], kernel, stride, pad, dilate)
            for axis, o in enumerate(outputs)
        ]
        read += len(cells_of_others(own, wanted))
    size = 2 * 2 * 8  # two channels of two samples in float64
    assert sum([forward for _, _, forward, *_ in found]) == read * size
    assert sum([backward for *_, backward, _, _ in found]) == read * size
    for *_, whole, gradient in found:
        np.testing.assert_allclose(whole, y.array, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gradient, g.array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_halos_and_gradients_have_the_cells_that_are_read_and_no_more(case, kind):
    cells, dims, kernel, stride, pad, dilate = case
    if kind in ("maxima", "sums"):
        dilate = (1,) * len(cells)
        pad = tuple([min(p, k // 2) for p, k in zip(pad, kernel, strict=True)])
    check_bytes((cells, dims, kernel, stride, pad, dilate), kind)


@pytest.mark.grid
@pytest.mark.parametrize("kind", ["convolution", "transposed"])
@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("dilate", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_no_stride_and_dilation_let_other_cells_travel(kernel, stride, dilate, pad, parts, kind):
    if kind == "transposed" and (kernel - 1) * dilate < 2 * pad:
        pad = 0  # all of the image would be padding
    check_bytes(((14,), (parts,), (kernel,), (stride,), (pad,), (dilate,)), kind)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("parts", [(2, 1), (3, 1), (2, 2)], ids=str)
def test_gaps_suit_every_padding(parts, mode):
    """Cells that stand beyond an edge in reverse, again, or many times."""
    shape = (7, 9)
    window = Window.of(2, kernel=2, stride=(2, 3), pad=(3, 2), dilation=(4, 2))
    ranks = int(np.prod(parts))
    have, out = blocks(shape, parts, ranks), blocks(window.outputs(shape), parts, ranks)
    plans = [halo_plan(have, out, shape, window, mode, gaps) for gaps in (False, True)]
    values = np.random.default_rng(0).standard_normal(shape)

    def program(comm):
        found = []
        own = values[have[comm.rank].index]
        used = np.zeros(plans[0].want[comm.rank].shape, bool)
        for place in np.ndindex(*out[comm.rank].shape):
            for j in np.ndindex(*window.kernel):
                steps = zip(place, window.stride, j, window.dilation, strict=True)
                used[tuple([o * s + i * d for o, s, i, d in steps])] = True
        g = np.random.default_rng(comm.rank).standard_normal(used.shape) * used
        for plan in plans:
            x = mnpar.Variable(own)
            y = F.exchange(comm, x, plan)
            y.grad = g
            y.backward()
            found.append((np.where(used, y.array, 0), x.grad))
        for dense, sparse in zip(*found, strict=True):
            np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-12)

    mnpar.run(program, ranks=ranks)
    assert sum(map(plans[1].sent, range(ranks))) < sum(map(plans[0].sent, range(ranks)))
    assert plans[1].adjoint.adjoint is plans[1]
    sent = [plans[1].sent(rank) for rank in range(ranks)]
    assert [plans[1].adjoint.received(rank) for rank in range(ranks)] == sent


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("parts", [(2, 1), (3, 1), (2, 2)], ids=str)
def test_a_convolution_that_pads_by_the_image_sends_the_halo_alone(parts, mode):
    shape, ranks = (7, 9), int(np.prod(parts))
    pad = [(2, 1), (0, 3)]
    window = Window.of(2, kernel=3, pad=pad)
    have, out = blocks(shape, parts, ranks), blocks(window.outputs(shape), parts, ranks)
    plan = halo_plan(have, out, shape, window, mode, gaps=True)
    call = lambda x: F.convolution_2d(x, np.ones((1, 2, 3, 3)), pad=pad, mode=mode)
    values = np.random.default_rng(0).standard_normal((2, 2, *shape))
    for rank, found in enumerate(mnpar.run(lambda comm: measure(comm, call, parts, values), ranks)):
        _, _, forward, backward, *_ = found
        assert forward == plan.sent(rank) * 2 * 2 * 8
        assert backward == plan.received(rank) * 2 * 2 * 8
