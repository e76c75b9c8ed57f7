"""Divided arrays with halos: F.halo_exchange of a divided array is the padded array, of which each
rank has what windows read; functions of it send nothing, and give what one process gives.
"""

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
import mnpar.links as L
from mnpar.errors import LayoutError, MismatchError
from mnpar.functions.divided.features import FeatureGrid, in_features
from mnpar.plans import Box, Window

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 9, 7))
K3, K2 = RNG.standard_normal((5, 4, 3, 3)), RNG.standard_normal((5, 4, 2, 2))
MEAN = np.arange(4.0)
GRIDS = [((1, 1), 1), ((2, 1), 2), ((1, 3), 3), ((2, 2), 4), ((2, 1), 3), ((6, 1), 6)]


def one_process(x, ksize, stride=1, pad=0, dilate=1, cover_all=False, mode="constant", fill=0):
    """What the windows read of the padded array."""
    n = x.ndim - 2
    window = Window.of(n, ksize, stride, pad, dilate, cover_all)
    read = window.reads(Box.whole(window.outputs(x.shape[2:]))).shape
    ends = [
        (before, max(0, stop - before - size))
        for (before, _), stop, size in zip(window.pad, read, x.shape[2:], strict=True)
    ]
    values = {"constant_values": fill} if mode == "constant" else {}
    y = F.pad(x, [(0, 0), (0, 0), *ends], mode, **values)
    return y[(..., *[slice(0, stop) for stop in read])]


def exchange(x, *args, **options):
    """The exchange of a divided array, or what it is in one process."""
    return (one_process if x.layout is None else F.halo_exchange)(x, *args, **options)


def as_whole(x):
    return x if x.layout is None else x.gather()


def computed(function, params, comm=None, dims=(1, 1), axes=None, x=X):
    """Output, gradients, and gradients of a function of the image's gradient; and the messages of
    forward after the first exchange.
    """
    image, own = mnpar.Variable(x), [mnpar.Parameter(p) for p in params]
    h = image if comm is None else mnpar.SpatialGrid(comm, dims).cut(image, axes)
    y = function(h, *own)
    v = np.cos(np.arange(y.size).reshape(y.shape))
    (g,) = mnpar.grad([F.sum(F.sin(y) * v)], [image], enable_double_backprop=True)
    mnpar.backward([F.sum(F.sin(g) * x)])
    return [as_whole(y).array, g.array, image.grad, *[p.grad for p in own]]


def check(function, params=(), x=X, axes=None, grids=GRIDS):
    expected = computed(function, params, x=x)
    for dims, ranks in grids:
        results = mnpar.run(
            lambda comm, dims=dims: computed(function, params, comm, dims, axes, x), ranks=ranks
        )
        for found in results:
            for mine, truth in zip(found, expected, strict=True):
                np.testing.assert_allclose(mine, truth, rtol=0, atol=1e-12 * abs(truth).max())


def several(h, w):
    h = exchange(h, ksize=3, pad=1)
    return F.concat([F.convolution_2d(h, w), F.max_pooling_2d(F.tanh(h), 3, 1), h[..., 1:-1, 1:-1]])


SHARED = {
    "layers of one window": (several, (K3,)),
    "two windows, one after the other": (
        lambda h, w, v: F.convolution_2d(
            F.relu(F.convolution_2d(exchange(h, ksize=4, pad=(2, 1)), w)), v.reshape((4, 5, 2, 2))
        ),
        (K3, K2),
    ),
    "windows of one cell keep the halos": (
        lambda h, w: F.average_pooling_2d(
            F.leaky_relu(F.convolution_2d(exchange(h, ksize=3, stride=2), w)), 3, 2
        ),
        (RNG.standard_normal((3, 4, 1, 1)),),
    ),
    "a stride": (
        lambda h, w: F.convolution_2d(
            exchange(h, ksize=3, stride=2, pad=1, mode="wrap"), w, stride=2
        ),
        (K3,),
    ),
    "a stride, and outputs for the last cells": (
        lambda h: F.max_pooling_2d(
            exchange(h, ksize=3, stride=2, cover_all=True, fill=-np.inf), 3, 2, cover_all=True
        ),
        (),
    ),
    "a stride above the kernel": (
        lambda h, w: F.convolution_2d(exchange(h * 2, ksize=2, stride=3, pad=1), w, stride=3),
        (K2,),
    ),
    "a dilation and an even kernel": (
        lambda h, w: F.convolution_2d(
            exchange(h, ksize=2, dilate=3, pad=[(2, 1), (0, 3)], mode="reflect"), w, dilate=3
        ),
        (K2,),
    ),
    "a window that spans as much": (
        lambda h: F.lp_pooling_nd(exchange(h, ksize=2, dilate=2, mode="edge", pad=1), 3, 1),
        (),
    ),
    "one axis": (
        lambda h, w: F.convolution_2d(exchange(h, ksize=(3, 1), pad=(1, 0), mode="symmetric"), w),
        (RNG.standard_normal((2, 4, 3, 1)),),
    ),
    "parameters of single cells": (
        lambda h, s, b: F.average_pooling_2d(
            F.prelu(exchange(h, ksize=3, pad=1), s) * b.reshape((1, 4, 1, 1)), 3, 1
        ),
        (RNG.standard_normal(4), RNG.standard_normal(4)),
    ),
    "numbers of single cells": (
        lambda h, s: F.average_pooling_2d(exchange(h, ksize=3, pad=1) * s, 3, 1),
        (RNG.standard_normal((4, 11, 9)),),
    ),
    "choices": (
        lambda h: F.average_pooling_2d(F.where(F.relu(z := exchange(h, ksize=2)), z, z * z), 2, 1),
        (),
    ),
    "local filters": (
        lambda h, w, b: F.local_convolution_2d(exchange(h, ksize=3, stride=2, pad=1), w, b, 2),
        (RNG.standard_normal((2, 5, 4, 4, 3, 3)), RNG.standard_normal((2, 5, 4))),
    ),
    "depthwise": (
        lambda h, w: F.depthwise_convolution_2d(exchange(h, ksize=3, pad=1), w),
        (RNG.standard_normal((2, 4, 3, 3)),),
    ),
    "slices at a stride": (
        lambda h: (
            (z := exchange(h, ksize=3, stride=2, pad=1))[:, :, 0:-2:2, 1:-1:2]
            + z[:, 1:3, 2::2, 1:-1:2].reshape((2, 2, 5, 4))[:, :1]
        ),
        (),
    ),
    "a stencil of slices": (
        lambda h: (
            (z := exchange(h, ksize=(1, 5), pad=(0, 2), mode="edge"))[..., 4:]
            - z[..., 3:][..., :-1]
            + (z[..., 1:] * z[..., :-1])[..., 1:-2]
        ),
        (),
    ),
    "functions along whole axes": (
        lambda h: F.average_pooling_2d(
            F.local_response_normalization(
                F.flip(F.concat([z := exchange(h, ksize=3, pad=1), F.sin(z)], 1), 1)
            )
            * F.repeat(F.stack([z, -z], 1)[:, 0], 2, 1)
            + F.concat(F.split_axis(F.permutate(F.repeat(z, 2, 1), np.arange(8)[::-1], 1), 2, 1)),
            3,
            1,
        ),
        (),
    ),
    "batch normalization by given statistics": (
        lambda h, g, b: F.average_pooling_2d(
            F.fixed_batch_normalization(exchange(h, ksize=3, pad=1), g, b, MEAN, MEAN + 1), 3, 1
        ),
        (RNG.standard_normal(4), RNG.standard_normal(4)),
    ),
    "another order of axes": (
        lambda h: F.average_pooling_2d(
            F.transpose(exchange(h, ksize=3, pad=1), (1, 0, 2, 3)) * 2, 3, 1
        ),
        (),
    ),
    "more channels of zeros": (
        lambda h: F.average_pooling_2d(
            F.pad(exchange(h, ksize=2), [(0, 0), (1, 2), (0, 0), (0, 0)], "constant"), 2, 1
        ),
        (),
    ),
    "the padded image in blocks": (
        lambda h: as_whole(exchange(h, ksize=3, pad=1)),
        (),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_functions_of_an_array_with_halos_are_those_of_the_padded_one(name):
    check(*SHARED[name])


def test_numbers_along_axes_of_one_part_leave_halos_along_the_others():
    check(
        lambda h: F.average_pooling_nd(exchange(h, ksize=3, pad=1)[..., 3], 3, 1),
        grids=[((2, 1), 2), ((3, 1), 4)],
    )
    check(
        lambda h: F.average_pooling_nd(exchange(h, ksize=3, pad=1)[:, 1, None], 3, 1),
        grids=[((2, 2), 4)],
    )


def test_samples_may_be_cut_too():
    function, params = SHARED["layers of one window"]
    check(function, params, axes=(0, 2), grids=[((2, 2), 4), ((1, 3), 3), ((2, 1), 4)])
    check(function, params, axes=(0, 2, 3), grids=[((2, 2, 1), 4), ((2, 2, 1), 5)])


def test_a_mesh_cuts_samples_and_images():
    function, params = SHARED["layers of one window"]
    truth = function(mnpar.Variable(X), *params).array

    def program(comm):
        mesh = mnpar.Mesh(comm, data=2, space=(2, 1))
        x = mesh.cut(X, data=0, space=(2, 3))
        return function(x, *params).gather().array

    found = mnpar.run(program, ranks=4)
    for rank, y in enumerate(found):
        np.testing.assert_allclose(y, truth[rank // 2 : rank // 2 + 1], atol=1e-12)


def test_images_of_one_and_three_axes():
    check(
        lambda h, w: F.convolution_nd(exchange(h, ksize=3, pad=1), w),
        (RNG.standard_normal((2, 1, 3)),),
        RNG.standard_normal((1, 1, 11)),
        grids=[((4,), 4), ((3,), 4)],
    )
    check(
        lambda h: F.average_pooling_nd(exchange(h, ksize=2, stride=1), 2, 1),
        (),
        RNG.standard_normal((1, 1, 4, 3, 5)),
        grids=[((2, 1, 2), 4), ((2, 2, 2), 8)],
    )


def test_a_network_on_an_exchange_sends_what_the_exchange_sends_and_no_more():
    """Forward the cells of the plan; backward as many, in as many messages."""

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 2))
        x, w = mnpar.Variable(X), mnpar.Parameter(K3)
        d = grid.cut(x)
        agreed = comm.traffic.messages, comm.traffic.bytes
        h = F.halo_exchange(d, ksize=3, pad=1)
        sent = comm.traffic.messages - agreed[0], comm.traffic.bytes - agreed[1]
        a = F.convolution_2d(h, w)
        b = F.max_pooling_2d(F.relu(h), 3, 1)
        c = h[:, :, 1:-1, 1:-1] - h[:, :, :-2, 1:-1]
        d = F.convolution_2d(h * 0.5, w)
        before = comm.traffic.messages, comm.traffic.bytes
        mnpar.grad([F.sum(y.part) for y in (a, b, c, d)], [x])
        after = comm.traffic.messages, comm.traffic.bytes
        plan = grid.halo((9, 7), Window.of(2, 3, 1, 1))
        own = [n - m for n, m in zip(after, before, strict=True)]
        return sent, before, own, plan.sent(comm.rank), plan.received(comm.rank)

    cell = X[:, :, 0, 0].nbytes
    for sent, before, backward, gives, gets in mnpar.run(program, ranks=4):
        assert before == sent == (3, gives * cell)
        assert backward == [3, gets * cell]


@pytest.mark.parametrize(
    ("shape", "dims", "window"),
    [
        ((12,), (3,), (3, 1, 1)),
        ((7,), (4,), (3, 1, 2, 2)),
        ((17,), (4,), (3, 2, 0, 2)),
        ((11,), (4,), (2, 3)),
        ((2,), (3,), (3, 1, 1)),
        ((9, 10), (2, 2), ((3, 2), (2, 1), (1, 0), (2, 3))),
        ((6, 5, 4), (2, 1, 2), ((2, 2, 2), (2, 1, 1), (1, 1, 0))),
    ],
    ids=str,
)
def test_an_exchange_sends_the_cells_of_its_plan(shape, dims, window):
    ranks, cell = int(np.prod(dims)), 2 * 3 * 8
    x = RNG.standard_normal((2, 3, *shape))

    def program(comm):
        grid, image = mnpar.SpatialGrid(comm, dims), mnpar.Variable(x)
        d = grid.cut(image)
        start = comm.traffic.bytes
        h = F.halo_exchange(d, None, None, *window)
        forward = comm.traffic.bytes
        mnpar.grad([F.sum(h.part * h.part)], [image])
        plan = grid.halo(shape, Window.of(len(shape), *window))
        assert h.part.shape[2:] == plan.want[comm.rank].shape
        return forward - start, comm.traffic.bytes - forward, plan

    for rank, (forward, backward, plan) in enumerate(mnpar.run(program, ranks=ranks)):
        assert forward == plan.sent(rank) * cell
        assert backward == plan.received(rank) * cell


def test_ranks_that_are_processes_share_an_exchange_too(comm):
    function, params = SHARED["layers of one window"]
    expected = computed(function, params)
    found = computed(function, params, comm, (comm.size, 1))
    for mine, truth in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, truth, rtol=0, atol=1e-12 * abs(truth).max())


def test_ranks_that_exchange_for_other_windows_are_told():
    def program(comm):
        x = mnpar.SpatialGrid(comm, (2, 1)).cut(X)
        F.halo_exchange(x, ksize=3 + 2 * comm.rank, pad=1)

    with pytest.raises(MismatchError):
        mnpar.run(program, ranks=2)


def test_own_code_on_a_part_is_put_back_as_a_divided_array():
    def stencil(h):
        return (h[..., :-2] + 2 * h[..., 1:-1] + h[..., 2:]) / 4

    x = X[:1, :1]
    truth = stencil(np.pad(x, [(0, 0), (0, 0), (0, 0), (1, 1)], "reflect"))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (1, comm.size))
        d = grid.cut(x)
        h = F.halo_exchange(d, ksize=(1, 3), pad=(0, 1), mode="reflect")
        y = mnpar.divided(stencil(h.part), grid, shape=d.shape)
        return np.allclose(y.gather().array, truth), np.allclose(stencil(h).gather().array, truth)

    assert mnpar.run(program, ranks=3) == [(True, True)] * 3


def test_what_an_array_with_halos_tells():
    def program(comm):
        x = mnpar.SpatialGrid(comm, (2,)).cut(np.arange(5.0)[None, None])
        h = F.halo_exchange(x, ksize=3, pad=1)
        blocks = h.repartition(mnpar.SpatialGrid(comm, (2,)))
        return (
            (h.shape, h.whole_shape, h.box, h.layout.cut_axes, h.layout.window.kernel),
            (repr(h), str(h.layout)),
            h.gather().array.tolist(),
            (blocks.part.array.tolist(), blocks.layout.window),
        )

    (told, texts, whole, blocks), other = mnpar.run(program, ranks=2)
    assert told == ((1, 1, 7), (1, 1, 7), Box((0, 0, 0), (1, 1, 5)), (2,), (3,))
    assert texts == (
        "divided variable with halos[0:1, 0:1, 0:5] of (1, 1, 7)([[[0., 0., 1., 2., 3.]]])",
        "(1, 1, 7) cut (2,) along axes (2,), with what windows of (3,) at strides of (1,) read",
    )
    assert other[0][2] == Box((0, 0, 3), (1, 1, 7))
    assert whole == other[2] == [[[0, 0, 1, 2, 3, 4, 0]]]
    assert (blocks, other[3]) == (([[[0, 0, 1, 2]]], None), ([[[3, 4, 0]]], None))


def test_the_gradient_of_an_array_with_halos_is_the_sum_of_the_shares():
    h = mnpar.Variable(np.pad(X, [(0, 0), (0, 0), (1, 1), (1, 1)]))
    (truth,) = mnpar.grad([F.sum(F.sin(F.convolution_2d(h, K3)))], [h])

    def program(comm):
        h = F.halo_exchange(mnpar.SpatialGrid(comm, (2, 2)).cut(mnpar.Variable(X)), ksize=3, pad=1)
        loss = F.sum(F.sin(F.convolution_2d(h, K3)))
        (g,) = mnpar.grad([loss], [h], retain_tape=True)
        loss.backward(retain_grad=True)
        with pytest.raises(LayoutError, match=r"x\.part\.grad is this rank's share"):
            _ = h.grad
        with pytest.raises(LayoutError, match=r"x\.part\.grad is this rank's share"):
            _ = h.grad_var
        np.testing.assert_allclose(g.part.array, truth.array[h.box.index], atol=1e-12)
        return np.allclose(g.gather().array, truth.array)

    assert mnpar.run(program, ranks=4) == [True] * 4


def test_the_gradient_of_an_array_with_halos_has_a_gradient():
    def second(comm=None):
        x, w = mnpar.Variable(X), mnpar.Parameter(K3)
        d = x if comm is None else mnpar.SpatialGrid(comm, (2, 2)).cut(x)
        h = exchange(d, ksize=3, pad=1)
        loss = F.sum(F.sin(F.convolution_2d(h, w)))
        (g,) = mnpar.grad([loss], [h], enable_double_backprop=True)
        inner = g[:, :, 1:-1, 1:-1]
        F.sum(F.sin(inner)).backward()
        return as_whole(inner).array, x.grad, w.grad

    expected = second()
    for found in mnpar.run(second, ranks=4):
        for mine, truth in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, truth, rtol=0, atol=1e-11 * abs(truth).max())


def test_dropout_has_the_mask_of_one_process():
    function = lambda h: F.average_pooling_2d(
        F.dropout(exchange(h, ksize=3, pad=1), 0.4, rng=np.random.default_rng(5)), 3, 1
    )
    check(function)


def test_what_is_forgotten_is_exchanged_again():
    def function(h):
        inner = lambda h: F.average_pooling_2d(F.tanh(exchange(h, ksize=3, pad=1)), 3, 1)
        return F.forget(inner, h)

    def program(comm, forget):
        x = mnpar.Variable(X)
        d = mnpar.SpatialGrid(comm, (2, 2)).cut(x)
        if forget:
            y = function(d)
        else:
            h = F.halo_exchange(d, ksize=3, pad=1)
            y = F.average_pooling_2d(F.forget(F.tanh, h), 3, 1)
        F.sum(y * y).backward()
        return x.grad

    for one, other in zip(*[mnpar.run(program, ranks=4, args=(f,)) for f in (0, 1)], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-13)


class Double(mnpar.FunctionNode):
    elementwise = True

    def forward(self, x):
        return 2 * x

    def backward(self, gy):
        return lambda: 2 * gy


class Cells(mnpar.FunctionNode):
    def forward(self, x):
        return x + 0

    def backward(self, gy):
        return gy


@mnpar.layout_rule(Cells, halos=True)
def of_cells(node, x):
    return x.layout.divided(Cells().apply((x.part,))[0])


def test_functions_of_ones_own_say_whether_they_work_with_halos():
    def program(comm):
        d = mnpar.SpatialGrid(comm, (2, 1)).cut(X)
        h = F.halo_exchange(d, ksize=3, pad=1)
        (y,) = Double().apply(Cells().apply((h,)))
        return np.array_equal(y[:, :, 1:-1, 1:-1].gather().array, 2 * X)

    assert mnpar.run(program, ranks=2) == [True, True]


# ---- what is refused ----


class Ruled(mnpar.FunctionNode):
    def forward(self, x):
        return x.sum()

    def backward(self, gy):
        return gy


@mnpar.layout_rule(Ruled)
def of_ruled(node, x):
    return F.reduce_from(x.layout.grid.comm, F.sum(x.part))


LABELS = np.zeros((2, 11, 9), "i4")
REFUSED = {
    "a sum": (lambda h, x: F.sum(h), "no function of single cells or windows"),
    "a mean of channels over cells": (lambda h, x: F.mean(h, axis=2), "no function of single"),
    "a batch normalization": (lambda h, x: L.BatchNormalization(4)(h), "no function of single"),
    "a softmax along a cut axis": (lambda h, x: F.softmax(h, axis=2), "no function of single"),
    "a loss": (lambda h, x: F.mean_squared_error(h, h), "no function of single"),
    "a loss beside": (lambda h, x: F.softmax_cross_entropy(h, LABELS), ""),
    "an accuracy": (lambda h, x: F.accuracy(h, LABELS), "count them twice"),
    "blocks and halos joined": (
        lambda h, x: F.concat([x, F.halo_exchange(x, ksize=3)]),
        "all must be cut alike",
    ),
    "halos and blocks joined": (
        lambda h, x: F.concat([F.halo_exchange(x, ksize=3), x]),
        "all must be cut alike",
    ),
    "halos joined along a cut axis": (
        lambda h, x: F.concat([h, h], 2),
        "its halos would be others",
    ),
    "a part of a cut axis": (lambda h, x: F.split_axis(h, [4], 2), "not within the halos"),
    "a cut axis rearranged": (
        lambda h, x: F.permutate(h, np.arange(11)[::-1].copy(), 2),
        "not within the halos",
    ),
    "a cut axis repeated": (lambda h, x: F.repeat(h, 2, 2), "not within the halos"),
    "padding along a cut axis": (
        lambda h, x: F.pad(h, [(0, 0), (0, 0), (1, 1), (0, 0)], "constant"),
        "its halos would be others",
    ),
    "an order of axes that is not the grid's": (
        lambda h, x: F.transpose(h, (0, 1, 3, 2)),
        "another order",
    ),
    "another shape": (lambda h, x: h.reshape((2, 2, 2, 11, 9)), "no function of single"),
    "a sum of channels": (lambda h, x: F.sum(h, axis=1), "no function of single"),
    "a product": (lambda h, x: F.tensordot(h, np.ones((9, 2)), ((3,), (0,))), "no function of"),
    "a transposed convolution": (lambda h, x: F.deconvolution_2d(h, np.ones((4, 1, 2, 2))), ""),
    "a larger window": (lambda h, x: F.convolution_2d(h, np.ones((1, 4, 5, 3))), "span 5 cells"),
    "another stride": (lambda h, x: F.max_pooling_2d(h, 3, 2), "at a stride of 2"),
    "padding once more": (lambda h, x: F.max_pooling_2d(h, 3, 1, 1), r"padded by \(1, 1\)"),
    "a pooling of the whole": (lambda h, x: F.max_pooling_2d(h, (11, 9)), "span 11 cells"),
    "cells of others": (lambda h, x: h[:, :, 4:], "not within the halos"),
    "a reversed axis": (lambda h, x: h[:, :, ::-1], "not within the halos"),
    "no cells": (lambda h, x: h[:, :, 3:3], "not within the halos"),
    "one cell": (lambda h, x: h[:, :, 3], "not within the halos"),
    "an array of places": (lambda h, x: h[:, :, np.array([0, 2, 1])], "not within the halos"),
    "a flip": (lambda h, x: F.flip(h, 2), "not within the halos"),
    "blocks beside": (lambda h, x: F.halo_exchange(x, ksize=3) + x, "all must be cut alike"),
    "beside blocks": (lambda h, x: x * F.halo_exchange(x, ksize=3), "all must be cut alike"),
    "other halos beside": (
        lambda h, x: h + F.halo_exchange(x, ksize=2, pad=[(2, 0), (1, 1)]),
        "all must be cut alike",
    ),
    "a choice by other cells": (
        lambda h, x: F.where(F.halo_exchange(x, ksize=3), x, x),
        "all must be cut alike",
    ),
    "an exchange of halos": (lambda h, x: F.halo_exchange(h, ksize=3), "blocks without halos"),
    "an exchange for later": (lambda h, x: F.halo_exchange(x, ksize=3, later=True), "later"),
    "another grid": (
        lambda h, x: F.halo_exchange(x, mnpar.SpatialGrid(x.layout.grid.comm, (1, 2)), ksize=3),
        "is not the grid by which it is cut",
    ),
    "a rule that knows no halos": (lambda h, x: Ruled().apply((h,)), "no function of single"),
    "cells between windows": (
        lambda h, x: F.halo_exchange(x, ksize=1, stride=3).gather(),
        "no rank has the cells between",
    ),
    "the array": (lambda h, x: h.array, "has a part of it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_send_or_count_twice_is_refused_with_what_to_do(name):
    call, why = REFUSED[name]

    def program(comm):
        x = mnpar.SpatialGrid(comm, (2, 1)).cut(X)
        call(F.halo_exchange(x, ksize=3, pad=1), x)

    with pytest.raises(LayoutError, match=why or "."):
        mnpar.run(program, ranks=2)


def test_statistics_over_other_ranks_are_refused():
    def program(comm):
        inner, across = comm.split(comm.rank // 2, 0), comm.split(comm.rank % 2, 0)
        h = F.halo_exchange(mnpar.SpatialGrid(inner, (2, 1)).cut(X), ksize=3, pad=1)
        L.MultiNodeBatchNormalization(4, across, blocks=comm)(h)

    with pytest.raises(LayoutError, match="count them twice"):
        mnpar.run(program, ranks=4)


def test_an_exchange_of_features_in_parts_is_refused():
    def program(comm):
        x = in_features(mnpar.Variable(X[:, 2 * comm.rank :][:, :2]), FeatureGrid(comm), 1, 4)
        F.halo_exchange(x, ksize=3)

    with pytest.raises(LayoutError, match="blocks without halos, of rows, columns"):
        mnpar.run(program, ranks=2)


def test_the_error_says_what_to_do():
    def program(comm):
        F.sum(F.halo_exchange(mnpar.SpatialGrid(comm, (2, 1)).cut(X), ksize=3, pad=1))

    with pytest.raises(LayoutError) as caught:
        mnpar.run(program, ranks=2)
    for word in ("F.halo_exchange was made", "ksize, stride and dilate", "x.repartition", "slices"):
        assert word in str(caught.value)


def test_arrays_that_are_not_divided_need_a_grid_and_a_shape():
    grid = mnpar.SpatialGrid(mnpar.create_communicator("self"), (1, 1))
    with pytest.raises(TypeError, match=r"a divided array, as grid\.cut"):
        F.halo_exchange(X, ksize=3)
    with pytest.raises(TypeError, match="say the ksize"):
        F.halo_exchange(X, grid, (9, 7))
    with pytest.raises(TypeError, match="a SpatialGrid is needed where None was given"):
        F.halo_exchange(X, None, (9, 7), 3)
    with pytest.raises(TypeError, match="a SpatialGrid is needed where an int was given"):
        F.halo_exchange(grid.cut(X), 3, ksize=3)
    with pytest.raises(ValueError, match="is not that of its last axes"):
        F.halo_exchange(grid.cut(X), grid, (9, 6), 3)
    assert F.halo_exchange(grid.cut(X), grid, (9, 7), 3).shape == X.shape
    assert F.halo_exchange(grid.cut(X[0, 0]), grid, (9, 7), 3, pad=1).shape == (11, 9)
