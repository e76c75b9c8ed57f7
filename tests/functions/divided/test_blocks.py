"""Functions of divided images, against the same in one process: outputs and the gradients of two
orders, in random forms.

``pytest --sweep`` tries more of them, and ``MNPAR_SPATIAL=20000 pytest
tests/functions/divided/test_blocks.py`` as many as one likes.
"""

import functools
import itertools
import os

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.functions.communication.delivery import Delivery
from mnpar.functions.normalization import local_contrast_normalization
from mnpar.plans import Window, blocks, output_shape
from tests.harness.parts import cut, on_blocks

PIECE = 50
MODES = ("constant", "constant", "edge", "reflect", "symmetric", "wrap")


def tuple_of(numbers):
    return tuple(int(n) for n in numbers)


@functools.cache
def grids_of(ranks, axes):
    """The grids that have use for more than half of the ranks."""
    return [d for d in np.ndindex(*[ranks + 1] * axes) if ranks / 2 < np.prod(d) <= ranks]


class Layer:
    """A random layer on a random grid: ``whole`` is the function in one process, ``divided`` what
    does the same with a divided image.
    """

    kinds = ("convolution", "convolution", "deconvolution", "max", "average", "lp", "unpooling")

    def __init__(self, seed):
        rng = np.random.default_rng([seed, 77])
        self.hide = seed % 4 != 1
        self.exchange_first = seed % 5 == 2
        self.kind = self.kinds[rng.integers(len(self.kinds))]
        while not self.draw(rng, wide=seed % 3 == 0):
            pass
        self.params = [rng.standard_normal(shape) for shape in self.param_shapes]
        self.x = rng.standard_normal((int(rng.integers(1, 3)), self.channels, *self.shape))
        self.w, self.v = (
            rng.standard_normal((*self.x.shape[:1], self.out_channels, *self.out)),
            rng.standard_normal(self.x.shape),
        )
        self.us = [rng.standard_normal(p.shape) for p in self.params]

    def draw(self, rng, wide):
        """False if there are no outputs; ``wide``: small windows in large blocks, which have
        outputs that need no halo.
        """
        n = self.axes = int(rng.integers(1, 4))
        self.ranks = int(rng.integers(1, 9))
        grids = grids_of(self.ranks, n)
        self.dims = tuple_of(grids[rng.integers(len(grids))])
        self.shape = tuple_of(rng.integers(1, {1: 24, 2: 12, 3: 6}[n], n))
        tops = ((8, 8, 4)[n - 1], 5, 4)
        if wide:
            self.ranks = int(rng.integers(2, 5))
            tops = (4, 3, 2)
            self.dims = tuple_of(rng.permutation([self.ranks, *[1] * (n - 1)]))
            self.shape = tuple_of(rng.integers(*{1: (20, 40), 2: (8, 16), 3: (4, 7)}[n], n))
        kernel, stride, dilation = [tuple_of(rng.integers(1, top, n)) for top in tops]
        self.pad = [tuple_of(pair) for pair in rng.integers(0, 4, (n, 2))]
        self.mode, cover_all = "constant", bool(rng.integers(2))
        self.groups, self.channels = [(1, 1), (1, 2), (2, 2), (2, 4)][rng.integers(4)]
        self.out_channels, self.param_shapes = self.channels, []
        if self.kind in ("convolution", "deconvolution"):
            self.out_channels = self.groups * int(rng.integers(1, 3))
            first, second = (
                (self.out_channels, self.channels)
                if self.kind == "convolution"
                else (self.channels, self.out_channels)
            )
            self.param_shapes = [(first, second // self.groups, *kernel), (self.out_channels,)][
                : int(rng.integers(1, 3))
            ]
        if self.kind == "convolution":
            self.mode = MODES[rng.integers(len(MODES))]
        elif self.kind != "deconvolution":
            dilation = (1,) * n
        if self.mode != "constant" or self.kind in ("average", "deconvolution"):
            cover_all = False
        if self.kind in ("deconvolution", "unpooling"):
            self.pad = [(p, p) for p, _ in self.pad]
        window = self.window = Window.of(n, kernel, stride, self.pad, dilation, cover_all)
        if self.kind in ("deconvolution", "unpooling"):
            image = window.image(self.shape)
            larger = tuple(a + int(rng.integers(s)) for a, s in zip(image, stride, strict=True))
            self.out = larger if min(larger) > 0 and window.outputs(larger) == self.shape else image
            return min(self.out) > 0 and window.outputs(self.out) == self.shape
        self.out = window.outputs(self.shape)
        ends = zip(self.shape, window.kernel, window.stride, self.pad, self.out, strict=True)
        seen = all([p[0] < k and (o - 1) * s - p[0] < a for a, k, s, p, o in ends])
        return min(self.out) > 0 and (seen or self.kind == "convolution")

    def __repr__(self):
        return (
            f"{self.kind} {self.shape} → {self.out}, {self.window}, {self.mode}, groups "
            f"{self.groups} on {self.dims}{', exchanged before' if self.exchange_first else ''}"
        )

    def whole(self, x, W=None, b=None):
        w, one = self.window, [p for p, _ in self.pad]
        if self.kind == "deconvolution":
            return F.deconvolution_nd(x, W, b, w.stride, one, self.out, w.dilation, self.groups)
        if self.kind == "unpooling":
            return F.unpooling_nd(x, w.kernel, w.stride, one, self.out, w.cover_all)
        around = {"constant_values": -np.inf} if self.kind == "max" else {}
        x = F.pad(x, [(0, 0), (0, 0), *self.pad], self.mode, **around)
        return self.unpadded(x, W, b)

    def unpadded(self, x, W=None, b=None):
        w = self.window
        if self.kind == "convolution":
            return F.convolution_nd(x, W, b, w.stride, 0, w.cover_all, w.dilation, self.groups)
        if self.kind == "average":
            return F.average_pooling_nd(x, w.kernel, w.stride)
        return (F.max_pooling_nd if self.kind == "max" else F.lp_pooling_nd)(
            x, w.kernel, w.stride, 0, w.cover_all
        )

    def divided(self, x, W=None, b=None):
        w = self.window
        if self.exchange_first and self.kind not in ("deconvolution", "unpooling"):
            fill = -np.inf if self.kind == "max" else 0
            h = F.halo_exchange(x, None, None, *w, mode=self.mode, fill=fill)
            before = x.layout.grid.comm.traffic.messages
            y = self.unpadded(h, W, b)
            sent = x.layout.grid.comm.traffic.messages - before
            assert not sent or y.layout is None  # of a single cell, which all ranks get
            return y
        if self.kind != "convolution":
            return self.whole(x, W, b)
        more = w.stride, self.pad, w.cover_all, w.dilation, self.groups
        return F.convolution_nd(x, W, b, *more, mode=self.mode)

    def program(self, comm):
        grid = mnpar.SpatialGrid(comm, self.dims, hide=self.hide)
        have = grid.block(self.shape)
        out = grid.block(self.out)
        return derivatives(
            on_blocks(self.divided, grid, self.shape),
            cut(self.x, have),
            self.params,
            cut(self.w, out),
            cut(self.v, have),
            self.us,
        )

    def check(self):
        found = mnpar.run(self.program, ranks=self.ranks)
        given = self.whole, self.x, self.params, self.w, self.v, self.us
        haves, outs = [blocks(shape, self.dims, self.ranks) for shape in (self.shape, self.out)]
        truth = list(zip(derivatives(*given), summed(*given), strict=True))
        for have, out, arrays in zip(haves, outs, found, strict=True):
            for i, (mine, (whole, terms)) in enumerate(zip(arrays, truth, strict=True)):
                box = (out, have, have)[i] if i < 3 else None
                # (of absolute values, other ones can be the maxima)
                large = max(terms.max(initial=0), np.abs(whole).max(initial=0))
                same(mine, whole if box is None else cut(whole, box), large)


def same(found, truth, terms=None):
    """As near as float64 comes where sums run in another order: measured by the largest, they
    differ by 1e-13.

    ``terms``: the largest sum of the absolute values of what is added up (:func:`summed`). By it,
    sums differ by 2e-16, and where they nearly cancel, so that less than a 1e-5 is left, by 2e-18.
    """
    bound = 1e-12 * np.abs(truth).max(initial=1)
    if terms is not None:
        bound = min(1e-15 * terms, max(bound, 1e-17 * terms))
    np.testing.assert_allclose(0 * truth if found is None else found, truth, rtol=0, atol=bound)


def derivatives(layer, x, params, w, v, us):
    """Output, and first and second gradients of x and of the parameters."""
    variables = [mnpar.Variable(a.copy()) for a in (x, *params)]
    y = layer(*variables)
    gs = mnpar.grad([F.sum(F.sin(y) * y * w)], variables, enable_double_backprop=True)
    mnpar.backward(
        [F.sum(F.sin(g) * u) for g, u in zip(gs, (v, *us), strict=True) if g is not None]
    )
    arrays = [None if g is None else g.array for g in gs]
    return [y.array, arrays[0], variables[0].grad, *arrays[1:], *[p.grad for p in variables[1:]]]


def summed(layer, x, params, w, v, us):
    """For each of the :func:`derivatives`, its terms' absolute values, added up: what the same
    layer makes of absolute values. A function that is taken of a sum, as sin, passes the sum's
    terms on by the size of its slope.
    """
    absolute = lambda *arrays: [mnpar.Variable(abs(a)) for a in arrays]
    true, variables = [mnpar.Variable(a) for a in (x, *params)], absolute(x, *params)
    y = layer(*true)
    gs = mnpar.grad([F.sum(F.sin(y) * y * w)], true)
    sin, cos, size, large = abs(np.sin(y.array)), abs(np.cos(y.array)), abs(y.array), abs(w)
    # of sin(y)·y: the slope, that of the slope, and so on
    slopes = [sin + size * cos, 2 * cos + size * sin, 3 * sin + size * cos]
    Y = layer(*variables)
    D = mnpar.Variable(large * (slopes[0] + slopes[1] * Y.array))
    G = mnpar.grad([Y], variables, [D], enable_double_backprop=True)
    second = [
        F.sum(g * (abs(u) * (abs(np.cos(own.array)) + abs(np.sin(own.array)) * g.array)))
        for g, own, u in zip(G, gs, (v, *us), strict=True)
    ]
    *GG, through = mnpar.grad([F.add(*second, F.sum(D * 0))], [*variables, D])
    back = mnpar.Variable(large * (slopes[1] + slopes[2] * Y.array) * through.array)
    more = mnpar.grad([layer(*variables)], variables, [back])
    # (second derivatives of norms have terms of both signs)
    both = [m.array + (0 if g is None else abs(g.array)) for g, m in zip(GG, more, strict=True)]
    return [Y.array, G[0].array, both[0], *[g.array for g in G[1:]], *both[1:]]


def pytest_generate_tests(metafunc):
    if "seeds" in metafunc.fixturenames:
        count = int(
            os.environ.get("MNPAR_SPATIAL", 1000 if metafunc.config.getoption("--sweep") else 200)
        )
        pieces = [range(first, min(first + PIECE, count)) for first in range(0, count, PIECE)]
        metafunc.parametrize("seeds", pieces, ids=[str(piece.start) for piece in pieces])


@pytest.mark.usefixtures("debug_off")
@pytest.mark.grid
def test_a_layer_on_any_grid_has_the_outputs_and_both_gradients_of_one_process(seeds):
    for seed in seeds:
        layer = Layer(seed)
        try:
            layer.check()
        except BaseException as error:
            error.add_note(f"seed {seed}: {layer}")
            raise


def test_a_layer_finds_a_single_cell_of_a_halo_that_is_wrong_by_a_billionth(monkeypatch):
    """In the message that comes first, the largest cell."""
    unpack, spoilt = Delivery.unpack, []

    def spoil(delivery, parcel, value):
        if value is not None and value.size and not spoilt:
            value = value.copy()
            value.flat[abs(value).argmax()] *= 1 + 1e-9
            spoilt.append(value)
        return unpack(delivery, parcel, value)

    monkeypatch.setattr(Delivery, "unpack", spoil)
    missed, found = [], 0
    for layer in map(Layer, range(60)):
        if layer.kind == "max":  # which may be another cell
            continue
        spoilt.clear()
        try:
            layer.check()
            missed += [layer] * len(spoilt)
        except AssertionError:
            assert spoilt
            found += 1
    assert (missed, found > 20) == ([], True)


# ---- what is no window ----

# a function, the shapes of its parameters, the shape of its output
SHAPE = (7, 5)
OTHERS = {
    "local contrast normalization": (
        lambda x: F.local_contrast_normalization(x, (3, 5)),
        [],
        SHAPE,
    ),
    "layer normalization": (
        lambda x, g, b: F.layer_normalization(x, g, b),
        [(4, *SHAPE)] * 2,
        SHAPE,
    ),
    "layer normalization of each channel": (
        lambda x, g, b: F.layer_normalization(x, g, b),
        [SHAPE] * 2,
        SHAPE,
    ),
    "group normalization": (
        lambda x, g, b: F.group_normalization(x, 2, g, b),
        [(4,)] * 2,
        SHAPE,
    ),
    "dropout": (
        lambda x: F.dropout(x, 0.4, rng=np.random.default_rng(5)),
        [],
        SHAPE,
    ),
    "resizing": (
        lambda x: F.resize_images(x, (9, 3)),
        [],
        (9, 3),
    ),
    "resizing, edges": (
        lambda x: F.resize_images(x, (4, 11), align_corners=False),
        [],
        (4, 11),
    ),
    "resizing, nearest": (
        lambda x: F.resize_images(x, (14, 2), mode="nearest"),
        [],
        (14, 2),
    ),
    "depthwise convolution": (
        lambda x, W, b: F.depthwise_convolution_2d(x, W, b, 2, 1),
        [(2, 4, 3, 3), (8,)],
        (4, 3),
    ),
    "average pooling without its padding": (
        lambda x: F.average_pooling_nd(x, 3, 2, 1, pad_value=None),
        [],
        (4, 3),
    ),
    "pooling by the third norm": (
        lambda x: F.lp_pooling_nd(x, 3, 1, p=3),
        [],
        (5, 3),
    ),
}
GRIDS = [(1, 1), (1, 3), (5, 1), (3, 2), (2, 4), (2, 2), (1, 7)]


@pytest.mark.parametrize("dims", GRIDS, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_too(name, dims):
    whole, params, out_shape = OTHERS[name]
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 4, *SHAPE))
    us = [rng.standard_normal(shape) for shape in params]
    params = [rng.standard_normal(shape) + 2 for shape in params]
    v = rng.standard_normal(x.shape)
    w = rng.standard_normal(whole(x, *params).shape)

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        have = grid.block(SHAPE)
        out = grid.block(out_shape)
        return derivatives(
            on_blocks(whole, grid, SHAPE),
            cut(x, have),
            params,
            cut(w, out),
            cut(v, have),
            us,
        )

    y, g, gg, *of_params = derivatives(whole, x, params, w, v, us)
    ranks = int(np.prod(dims))
    for have, out, found in zip(
        blocks(SHAPE, dims), blocks(out_shape, dims), mnpar.run(program, ranks=ranks), strict=True
    ):
        same(found[0], cut(y, out))
        same(found[1], cut(g, have))
        same(found[2], cut(gg, have))
        for mine, truth in zip(found[3:], of_params, strict=True):
            same(mine, truth)


TO_ALL = {
    "average": lambda x: F.average(x, axis=(2, 3)),
    "weighted average": lambda x: F.average(x, (2, 3), np.arange(1.0, 36.0).reshape(SHAPE)),
    "weighted average, kept": lambda x: F.average(
        x, (3, 2), np.arange(1.0, 36.0).reshape(SHAPE), keepdims=True
    ).reshape(x.shape[:2]),
    "max": lambda x: F.max_pooling_nd(x, SHAPE, cover_all=False).reshape(x.shape[:2]),
}


@pytest.mark.parametrize("integers", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("dims", GRIDS, ids=str)
@pytest.mark.parametrize("name", TO_ALL)
def test_a_loss_of_the_whole_image_that_all_ranks_compute_counts_once(name, dims, integers):
    whole = TO_ALL[name]
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 3, *SHAPE))
    v = rng.standard_normal((2, 3, *SHAPE))
    x = x.round() if integers else x
    w = rng.standard_normal((2, 3))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        have = grid.block(SHAPE)
        function = on_blocks(whole, grid, SHAPE)
        return derivatives(function, cut(x, have), [], w, cut(v, have), [])

    y, g, gg = derivatives(whole, x, [], w, v, [])
    for have, (y_r, g_r, gg_r) in zip(
        blocks(SHAPE, dims), mnpar.run(program, ranks=int(np.prod(dims))), strict=True
    ):
        same(y_r, y)
        same(g_r, cut(g, have))
        same(gg_r, cut(gg, have))


@pytest.mark.parametrize("dims", GRIDS, ids=str)
def test_a_matrix_cut_like_the_blocks_gives_what_the_whole_one_gives(dims):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 3, *SHAPE))
    v = rng.standard_normal((2, 3, *SHAPE))
    W, U = rng.standard_normal((2, 4, 3, *SHAPE))
    b = rng.standard_normal(4)
    u = rng.standard_normal(4)
    w = rng.standard_normal((2, 4))

    def multiply(x, W, b):
        return F.tensordot(x, W, ((1, 2, 3), (1, 2, 3))) + b

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        have = grid.block(SHAPE)
        return derivatives(
            lambda x, W, b: on_blocks(multiply, grid, SHAPE)(
                x, mnpar.divided(W, grid, shape=(4, 3, *SHAPE)), b
            ),
            cut(x, have),
            [cut(W, have), b],
            w,
            cut(v, have),
            [cut(U, have), u],
        )

    y, g, gg, gW, gb, ggW, ggb = derivatives(multiply, x, [W, b], w, v, [U, u])
    for found, have in zip(
        mnpar.run(program, ranks=int(np.prod(dims))), blocks(SHAPE, dims), strict=True
    ):
        truth = [y, cut(g, have), cut(gg, have), cut(gW, have), gb, cut(ggW, have), ggb]
        for mine, theirs in zip(found, truth, strict=True):
            same(mine, theirs)


# ---- single cases ----


def gradient_of(layer, x, w):
    x = mnpar.Variable(x)
    y = layer(x)
    F.sum(y * w).backward()
    return y.array, x.grad


AWKWARD = {
    "of equal numbers, the first is the maximum": (
        np.random.default_rng(0).integers(0, 3, (2, 2, *SHAPE)).astype(float),
        lambda x: F.max_pooling_nd(x, 3, 1, 1, False),
    ),
    "the length of zeros": (
        np.pad(np.ones((2, 2, 3, 2)), [(0, 0), (0, 0), (4, 0), (0, 3)]),
        lambda x: F.lp_pooling_nd(x, 3, 1, 1),
    ),
    "the contrast of zeros": (
        np.pad(np.ones((2, 2, 3, 2)), [(0, 0), (0, 0), (4, 0), (0, 3)]),
        lambda x: F.local_contrast_normalization(x, 3),
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_gradients_are_finite_and_those_of_one_process_for(name):
    x, whole = AWKWARD[name]
    w = np.random.default_rng(1).standard_normal(whole(x).shape)

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (3, 2))
        box = grid.block(SHAPE)
        with mnpar.using_config("debug", True):  # padding of -∞ is no error
            return gradient_of(on_blocks(whole, grid, SHAPE), cut(x, box).copy(), cut(w, box))

    y, g = gradient_of(whole, x.copy(), w)
    assert np.isfinite(g).all()
    for box, (y_r, g_r) in zip(blocks(SHAPE, (3, 2)), mnpar.run(program, ranks=6), strict=True):
        same(y_r, cut(y, box))
        same(g_r, cut(g, box))


def test_a_nan_is_found_beside_the_padding_of_a_maximum():
    def program(comm):
        x = np.full((1, 1, 2), np.nan if comm.rank else 1.0)
        with mnpar.using_config("debug", True):
            x = mnpar.divided(x, mnpar.SpatialGrid(comm, (2,)), shape=(1, 1, 4))
            F.max_pooling_nd(x, 3, 1, 1)

    with pytest.raises(FloatingPointError, match=r"exchange .* has NaN"):
        mnpar.run(program, ranks=2)


@pytest.mark.usefixtures("debug_off")
@pytest.mark.filterwarnings("ignore:rank .*its loss.*is nan:UserWarning")
@pytest.mark.parametrize("fill", [-np.inf, np.nan])
def test_the_largest_of_all_is_found_where_other_blocks_have_no_number(fill):
    x = np.full((1, 2, 4), fill)
    x[0, :, 3], x[0, 1] = 5, [1, 7, 2, 7]

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (comm.size,))
        mine = mnpar.Variable(cut(x, grid.block((4,))))
        y = F.max_pooling_nd(mnpar.divided(mine, grid, shape=x.shape), 4).reshape((1, 2))
        F.sum(y).backward()
        return y.array, mine.grad

    y, g = zip(*mnpar.run(program, ranks=3), strict=True)
    for one in y:
        np.testing.assert_array_equal(one, x.max(axis=2))
    wanted = np.zeros_like(x)
    wanted[0, [0, 1], [x[0, 0].argmax(), 1]] = 1
    np.testing.assert_array_equal(np.concatenate(g, axis=2), wanted)


def test_local_contrast_has_the_gradient_that_its_equations_have():
    """dv = e/s - v·(g∗u), u = Σ e·v / s³, dx = dv - g∗Σ dv; e/s also where v is 0."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 5))
    e = rng.standard_normal((2, 3, 6, 5))
    x[0] = 0
    a, b, _ = local_contrast_normalization.gaussian_weights((3, 3))[0]
    kernel = np.outer([a, b, a], [a, b, a])

    def around(z):
        padded = np.pad(z.sum(axis=1), [(0, 0), (1, 1), (1, 1)])
        y = np.zeros(z[:, 0].shape)
        for i, j in np.ndindex(3, 3):
            y += kernel[i, j] * padded[:, i : i + 6, j : j + 5]
        return y[:, None] / 3

    v = x - around(x)
    s = np.sqrt(around(v * v))
    s[s == 0] = 1
    dv = e / s - v * around(e * v / s**3)
    y, g = gradient_of(lambda x: F.local_contrast_normalization(x, 3), x.copy(), e)
    np.testing.assert_allclose(y, v / s, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(g, dv - around(dv), rtol=1e-11, atol=1e-11)
    # where v is 0, y has the slope of v
    np.testing.assert_allclose(g[0], (e - around(e))[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dims", [(1, 3), (5, 1), (3, 2), (2, 2), (4, 4)], ids=str)
def test_of_seven_by_seven_cells_a_kernel_of_five_reads_two_ranks_on_and_some_ranks_have_no_outputs(
    dims,
):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 1, 7, 7))
    W = rng.standard_normal((1, 1, 5, 5))
    w = rng.standard_normal((2, 1, 3, 3))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        box = grid.block((7, 7))
        filters = mnpar.Variable(W.copy())
        y, g = gradient_of(
            on_blocks(lambda x: F.convolution_nd(x, filters), grid, (7, 7)),
            cut(x, box).copy(),
            cut(w, grid.block((3, 3))),
        )
        return y, g, filters.grad, comm.traffic.messages

    filters = mnpar.Variable(W.copy())
    y, g = gradient_of(lambda x: F.convolution_nd(x, filters), x.copy(), w)
    haves = blocks((7, 7), dims)
    outs = blocks((3, 3), dims)
    for have, out, found in zip(haves, outs, mnpar.run(program, ranks=len(haves)), strict=True):
        for mine, truth in zip(found, (cut(y, out), cut(g, have), filters.grad), strict=False):
            same(mine, truth)
    if dims == (4, 4):
        assert sum([out.empty for out in outs]) == 7


def test_a_batch_of_no_samples():
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 2))
        W = mnpar.Variable(np.ones((2, 3, 3, 3)))
        x = mnpar.Variable(np.ones((0, 3, *grid.block(SHAPE).shape)))
        image = mnpar.divided(x, grid, shape=(0, 3, *SHAPE))
        y = F.max_pooling_nd(F.convolution_nd(image, W, pad=1), 2).part
        F.sum(y).backward()
        return y.shape, x.grad.shape, W.grad.sum()

    found = mnpar.run(program, ranks=4)
    assert [y[0] for y, _, _ in found] == [0] * 4
    assert [
        g == (0, 3, *box.shape) for (_, g, _), box in zip(found, blocks(SHAPE, (2, 2)), strict=True)
    ] == [True] * 4
    assert [gW for _, _, gW in found] == [0.0] * 4


def test_a_volume_on_eight_ranks():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 2, 5, 4, 3))
    W = rng.standard_normal((3, 2, 3, 3, 3))
    w = rng.standard_normal((1, 3, 5, 4, 3))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 2, 2))
        box = grid.block((5, 4, 3))
        filters = mnpar.Variable(W.copy())
        layer = on_blocks(lambda x: F.convolution_nd(x, filters, pad=1), grid, (5, 4, 3))
        return *gradient_of(layer, cut(x, box).copy(), cut(w, box)), filters.grad

    filters = mnpar.Variable(W.copy())
    y, g = gradient_of(lambda x: F.convolution_nd(x, filters, pad=1), x.copy(), w)
    for box, (y_r, g_r, gW_r) in zip(
        blocks((5, 4, 3), (2, 2, 2)), mnpar.run(program, ranks=8), strict=True
    ):
        same(y_r, cut(y, box))
        same(g_r, cut(g, box))
        same(gW_r, filters.grad)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("f4", 2e-6), ("f8", 1e-12)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
def test_filters_of_single_channels_give_what_one_process_gives(k, dtype, tolerance):
    """Depthwise: outputs and both gradients, at strides 1 to 3, without padding and with as much as
    there may be.
    """
    for number, (stride, pad) in enumerate(itertools.product((1, 2, 3), sorted({0, k - 1}))):
        rng = np.random.default_rng(number)
        shape = (9, 8)
        dims = ((2, 2), (3, 2), (5, 1))[number % 3]
        out = output_shape(shape, k, stride, pad)
        x = rng.standard_normal((2, 3, *shape)).astype(dtype)
        W = rng.standard_normal((2, 3, k, k)).astype(dtype)
        w = rng.standard_normal((2, 6, *out)).astype(dtype)

        def program(comm, dims=dims, x=x, W=W, w=w, out=out, stride=stride, pad=pad):
            grid = mnpar.SpatialGrid(comm, dims)
            filters = mnpar.Variable(W.copy())
            y, g = gradient_of(
                on_blocks(
                    lambda x: F.depthwise_convolution_2d(x, filters, None, stride, pad),
                    grid,
                    (9, 8),
                ),
                cut(x, grid.block((9, 8))).copy(),
                cut(w, grid.block(out)),
            )
            return y, g, filters.grad

        filters = mnpar.Variable(W.copy())
        y, g = gradient_of(
            lambda x, f=filters, s=stride, p=pad: F.depthwise_convolution_2d(x, f, None, s, p),
            x.copy(),
            w,
        )
        haves = blocks(shape, dims)
        outs = blocks(out, dims)
        for have, mine, found in zip(
            haves, outs, mnpar.run(program, ranks=len(haves)), strict=True
        ):
            for found_part, truth in zip(
                found, (cut(y, mine), cut(g, have), filters.grad), strict=True
            ):
                # a rank whose cells no window reads
                part = 0 * truth if found_part is None else found_part
                np.testing.assert_allclose(
                    part, truth, rtol=0, atol=tolerance * abs(truth).max(initial=1)
                )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_convolution_whose_windows_are_cut_like_the_blocks(axes, groups):
    """Ranks that give and take no cells: random layers have hardly any."""
    rng = np.random.default_rng(axes)
    shape = (8, 4, 6)[:axes]
    x, W, b = [
        rng.standard_normal(s) for s in ((2, 4, *shape), (6, 4 // groups, *[2] * axes), (6,))
    ]
    out = tuple([n // 2 for n in shape])
    w, v, *us = [rng.standard_normal(s) for s in ((2, 6, *out), x.shape, W.shape, b.shape)]

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (4, *[1] * (axes - 1)))
        layer = on_blocks(lambda x, W, b: F.convolution_nd(x, W, b, 2, groups=groups), grid, shape)
        have = grid.block(shape)
        layer(cut(x, have), W, b)  # the grid has met the shapes
        before = comm.traffic.messages
        return derivatives(
            layer, cut(x, have), [W, b], cut(w, grid.block(out)), cut(v, have), us
        ), comm.traffic.messages - before

    y, g, gg, *of_params = derivatives(
        lambda x, W, b: F.convolution_nd(x, W, b, 2, groups=groups), x, [W, b], w, v, us
    )
    for rank, (found, messages) in enumerate(mnpar.run(program, ranks=4)):
        assert messages == 0
        have, own = [slice(2 * rank, 2 * rank + 2), slice(rank, rank + 1)]
        for mine, truth in zip(
            found, (y[:, :, own], g[:, :, have], gg[:, :, have], *of_params), strict=True
        ):
            same(mine, truth)


@pytest.mark.parametrize("dims", [(2, 2), (1, 7)], ids=str)
def test_maxima_go_back_to_where_they_were(dims):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, *SHAPE))
    w = rng.standard_normal((2, 3, *SHAPE))

    def whole(x):
        y, places = F.max_pooling_2d(x, 3, 2, 1, return_indices=True)
        return F.upsampling_2d(y * y, places, 3, 2, 1, outsize=SHAPE)

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        box = grid.block(SHAPE)
        return gradient_of(on_blocks(whole, grid, SHAPE), cut(x, box).copy(), cut(w, box))

    y, g = gradient_of(whole, x.copy(), w)
    for box, (y_r, g_r) in zip(
        blocks(SHAPE, dims), mnpar.run(program, ranks=int(np.prod(dims))), strict=True
    ):
        same(y_r, cut(y, box))
        same(g_r, cut(g, box))


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("name", [*OTHERS, "convolution", "max", "transposed"])
def test_other_dtypes_stay_what_they_are(name, dtype):
    more = {
        "convolution": (
            lambda x, W: F.convolution_nd(x, W, pad=1),
            [(2, 4, 3, 3)],
            SHAPE,
        ),
        "max": (
            lambda x: F.max_pooling_nd(x, 2),
            [],
            (4, 3),
        ),
        "transposed": (
            lambda x, W: F.deconvolution_nd(x, W, stride=2),
            [(4, 2, 2, 2)],
            (14, 10),
        ),
    }
    whole, params, out_shape = {**OTHERS, **more}[name]
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 4, *SHAPE)).astype(dtype)
    params = [rng.standard_normal(s).astype(dtype) for s in params]
    y, g = gradient_of(lambda x: whole(x, *params), x.copy(), 1)

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (1, 7))
        layer = on_blocks(lambda x: whole(x, *params), grid, SHAPE)
        return gradient_of(layer, cut(x, grid.block(SHAPE)).copy(), 1)

    within = {"rtol": 2e-2, "atol": 2e-2} if dtype == "f2" else {"rtol": 1e-4, "atol": 1e-4}
    haves = blocks(SHAPE, (1, 7))
    outs = blocks(out_shape, (1, 7))
    for have, out, (y_r, g_r) in zip(haves, outs, mnpar.run(program, ranks=7), strict=True):
        assert y_r.dtype == y.dtype
        np.testing.assert_allclose(y_r, cut(y, out), **within)
        np.testing.assert_allclose(0 * cut(g, have) if g_r is None else g_r, cut(g, have), **within)


@pytest.mark.parametrize("hide", [True, False])
def test_a_convolution_moves_the_cells_of_its_halo_and_no_others(hide):
    """3 × 3 ranks of 4 × 4 cells, a kernel of 3: the one in the middle gets its 20 neighbours'
    cells in 8 messages.
    """

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (3, 3), hide=hide)
        x = mnpar.Variable(np.ones((2, 3, 4, 4), "f4"))
        W = mnpar.Variable(np.ones((5, 3, 3, 3), "f4"))
        y = mnpar.divided(x, grid, shape=(2, 3, 12, 12))
        y = F.convolution_nd(y, W, pad=1).part
        forward = comm.traffic.messages, comm.traffic.bytes
        F.sum(y).backward()
        return forward, (comm.traffic.messages, comm.traffic.bytes)

    cell = 2 * 3 * 4
    widths = [1, 2, 1]  # sides at which there is a neighbour
    for rank, (forward, both) in enumerate(mnpar.run(program, ranks=9)):
        rows = widths[rank // 3]
        columns = widths[rank % 3]
        messages = rows + columns + rows * columns
        cells = 4 * (rows + columns) + rows * columns
        assert forward == (messages, cells * cell)
        assert both == (2 * messages, 2 * cells * cell)


K3 = np.random.default_rng(1).standard_normal((3, 3, 3, 3)).astype("f4")
WORKING = {
    "MaxPooling": lambda x: F.max_pooling_nd(x, 3, 1, 1),
    "SumPooling": lambda x: F.average_pooling_nd(x, 3, 1, 1, pad_value=None),
    "LpPooling": lambda x: F.lp_pooling_nd(x, 3, 1, 1),
    "Unpooling": lambda x: F.unpooling_nd(x, 3, 1, 1),
    "Deconvolution": lambda x: F.deconvolution_nd(x, K3, pad=1),
}


class Order(mnpar.FunctionHook):
    """The names of the functions, as they end."""

    def __init__(self):
        self.names = []

    def forward_postprocess(self, function, in_data):
        self.names.append(type(function).__name__)


@pytest.mark.parametrize("name", WORKING)
def test_other_layers_can_work_before_their_halo_comes_and_move_the_same(name):
    """3 × 3 ranks of 8 × 8 cells."""

    def program(comm, hide):
        x = mnpar.Variable(
            np.random.default_rng(comm.rank).standard_normal((2, 3, 8, 8)).astype("f4")
        )
        with Order() as order:
            grid = mnpar.SpatialGrid(comm, (3, 3), hide=hide)
            y = on_blocks(WORKING[name], grid, (24, 24))(x)
        forward = comm.traffic.messages, comm.traffic.bytes
        F.sum(y * y).backward()
        return forward, (comm.traffic.messages, comm.traffic.bytes), y.array, x.grad, order.names

    hidden, plain = [mnpar.run(program, ranks=9, args=(hide,)) for hide in (True, False)]
    for mine, other in zip(hidden, plain, strict=True):
        assert mine[:2] == other[:2]
        for a, b in zip(mine[2:4], other[2:4], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        assert mine[4].index("Give") < mine[4].index(name) < mine[4].index("Take")
        assert other[4].index("Exchange") < other[4].index(name)


@pytest.mark.parametrize("hide", [True, False])
@pytest.mark.parametrize("asking", [(), (0,), (1, 2)], ids=str)
def test_images_without_gradients_get_none_and_no_messages(asking, hide):
    """As in the first layer; here some ranks do ask for them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 1, 12))
    W = rng.standard_normal((1, 1, 3))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (3,), hide=hide)
        mine = mnpar.Variable(cut(x, grid.block((12,))).copy(), requires_grad=comm.rank in asking)
        filters = mnpar.Variable(W.copy())
        layer = on_blocks(lambda x: F.convolution_nd(x, filters, pad=1), grid, (12,))
        y = layer(mine)
        forward = comm.traffic.messages
        F.sum(y * y).backward()
        return mine.grad, filters.grad, comm.traffic.messages - forward

    serial = mnpar.Variable(x.copy())
    filters = mnpar.Variable(W.copy())
    y = F.convolution_nd(serial, filters, pad=1)
    F.sum(y * y).backward()
    found = mnpar.run(program, ranks=3)
    neighbours = [{1}, {0, 2}, {1}]
    for rank, (g, gW, messages) in enumerate(found):
        same(gW, filters.grad)
        assert messages == len(neighbours[rank] & set(asking))
        assert (g is None) == (rank not in asking)
        if g is not None:
            same(g, serial.grad[..., 4 * rank : 4 * rank + 4])


def test_windows_that_are_cut_like_the_blocks_need_no_message_and_no_copy():
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 2))
        x = mnpar.Variable(np.ones((1, 2, 4, 4)))
        image = mnpar.divided(x, grid, shape=(1, 2, 8, 8))
        F.max_pooling_nd(image, 2)
        F.deconvolution_nd(image, np.ones((2, 3, 2, 2)), stride=2)
        whole = F.halo_exchange(x, grid, (8, 8), 2, 2) is x
        return whole, comm.traffic.messages, F.halo_exchange(x, grid, (8, 8), 3, pad=1).shape

    assert mnpar.run(program, ranks=4) == [(True, 0, (1, 2, 6, 6))] * 4


def test_a_loss_of_blocks_is_weighted_by_their_shares():
    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 4))
        x = mnpar.Variable(cut(np.arange(15.0).reshape(1, 1, 5, 3), grid.block((5, 3))).copy())
        loss = F.mean(x * x) * grid.share((5, 3)) if x.size else F.sum(x)
        loss.backward()
        return loss.item(), x.grad

    results = mnpar.run(program, ranks=8)
    assert sum([loss for loss, _ in results]) == pytest.approx((np.arange(15.0) ** 2).mean())
    for box, (_, g) in zip(blocks((5, 3), (2, 4)), results, strict=True):
        np.testing.assert_allclose(g, cut(2 * np.arange(15.0).reshape(1, 1, 5, 3) / 15, box))


@pytest.mark.ranks(2, 3, 4)
def test_layers_between_processes_too(comm):
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((2, 3, 20, 5))
    W = rng.standard_normal((4, 3, 3, 3))
    w = rng.standard_normal((2, 4, 10, 3))
    grid = mnpar.SpatialGrid(comm, (comm.size, 1))
    filters = mnpar.Variable(W.copy())
    x = mnpar.Variable(cut(whole, grid.block((20, 5))).copy())
    image = mnpar.divided(x, grid, shape=whole.shape)
    y = F.max_pooling_nd(F.convolution_nd(image, filters, pad=1), 3, 2, 1)
    y = F.average_pooling_nd(y, (2, 1), 1).part
    out = grid.block((10, 3))
    F.sum(y * cut(w, out)).backward()
    serial_x = mnpar.Variable(whole.copy())
    serial_W = mnpar.Variable(W.copy())
    z = F.average_pooling_nd(
        F.max_pooling_nd(F.convolution_nd(serial_x, serial_W, pad=1), 3, 2, 1), (2, 1), 1
    )
    F.sum(z * w).backward()
    same(y.array, cut(z.array, out))
    same(x.grad, cut(serial_x.grad, grid.block((20, 5))))
    same(filters.grad, serial_W.grad)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, g: F.convolution_nd(x, np.ones((1, 2, 3, 3))), "channels"),
        (lambda x, g: F.convolution_nd(x, np.ones((1, 1, 5, 5))), "do not fit"),
        (lambda x, g: F.convolution_nd(x, np.ones((1, 1, 3, 3)), pad=1, mode="mirror"), "mode"),
        (lambda x, g: F.deconvolution_nd(x, np.ones((1, 1, 2, 2)), outsize=9), "outsize"),
        (lambda x, g: F.max_pooling_nd(x, 2, 1, 2), "padding only"),
        (lambda x, g: F.layer_normalization(x, np.ones(4), np.ones(4)), "last axes"),
        (
            lambda x, g: F.halo_exchange(x.part, g, (4, 3), 2, pad=[(1, 1, 5), (0, 0)]),
            "a pair (before, after)",
        ),
        (
            lambda x, g: F.convolution_nd(x, np.ones((1, 1, 3, 3)), pad=[(1, 1, 5), (0, 0)]),
            "a pair (before, after)",
        ),
    ],
)
def test_what_does_not_fit_is_said(call, words):
    """As in one process, where all other arguments are tested: the whole shape is checked."""

    def program(comm):
        grid = mnpar.SpatialGrid(comm, (2, 1))
        call(mnpar.divided(np.ones((1, 1, 2, 3)), grid, shape=(1, 1, 4, 3)), grid)

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        mnpar.run(program, ranks=2)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, comm: mnpar.SpatialGrid(comm, (2.5, 1)),
        lambda x, comm: F.halo_exchange(x, mnpar.SpatialGrid(comm, (2, 1)), (4.5, 3), 1),
    ],
)
def test_fractions_are_no_lengths(call):
    with pytest.raises(TypeError, match="integer"):
        mnpar.run(lambda comm: call(np.ones((1, 1, 2, 3)), comm), ranks=2)


@pytest.mark.parametrize("dims", [(2, 1), (2, 2), (1, 3)], ids=str)
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_maxima_of_nothing_but_minus_infinity_are_where_one_process_finds_them(dims, pad):
    """The padding of an image is -inf, too, and is no cell of it."""
    rng = np.random.default_rng(pad)
    image = np.where(rng.random((2, 2, 7, 8)) < 0.8, -np.inf, rng.random((2, 2, 7, 8)))
    image[0] = -np.inf
    weights = np.random.default_rng(9).random((2, 2, 9, 10))

    def pooled(comm, stride, retain):
        x = mnpar.Variable(image.copy())
        cut = x if comm is None else mnpar.SpatialGrid(comm, dims).cut(x)
        y, places = F.max_pooling_2d(cut, 3, stride, pad, False, return_indices=True)
        own = weights[:, :, : y.shape[2], : y.shape[3]]
        gy = mnpar.Variable(own) if comm is None else y.layout.grid.cut(own).part
        (gx,) = mnpar.grad([y], [cut], [gy], enable_double_backprop=retain)
        if gx is None:  # no window of this rank's
            gx = cut.layout.divided(mnpar.Variable(np.zeros(cut.part.shape)))
        places = places if comm is None else places.gather().array
        return [(a if comm is None else a.gather()).array for a in (y, gx)] + [places]

    ranks = int(np.prod(dims))
    for stride in (1, 2, 3):
        for retain in (False, True):
            expected = pooled(None, stride, retain)
            for found in mnpar.run(lambda comm: pooled(comm, stride, retain), ranks=ranks):  # noqa: B023
                for one, right in zip(found, expected, strict=True):
                    np.testing.assert_allclose(one, right, rtol=1e-14)
