"""Layers on blocks, against the same layers in one process: outputs and the gradients of two orders, in random forms.

``MNPAR_SPATIAL=20000 pytest tests/functions/test_spatial.py`` tries more of them.
"""

import os

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.functions import blockwise
from mnpar.plans import Window, blocks

COUNT = int(os.environ.get("MNPAR_SPATIAL", "1000"))
PIECE = 50
MODES = ("constant", "constant", "edge", "reflect", "symmetric", "wrap")


def cut(array, box):
    """The part of an array whose last axes are those of the box."""
    return array[(..., *[slice(a, b) for a, b in zip(box.start, box.stop, strict=True)])]


def tuple_of(numbers):
    return tuple(int(n) for n in numbers)


class Layer:
    """A random layer on a random grid: ``whole`` is the function in one process, ``spatial`` on blocks."""

    kinds = ("convolution", "convolution", "deconvolution", "max", "average", "lp", "unpooling")

    def __init__(self, seed):
        rng = self.rng = np.random.default_rng([seed, 77])
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
        """False if there are no outputs; ``wide``: small windows in large blocks, which have outputs that need no halo."""
        n = self.axes = int(rng.integers(1, 4))
        self.ranks = int(rng.integers(1, 9 if n < 3 else 7))
        grids = [d for d in np.ndindex(*[self.ranks + 1] * n) if self.ranks / 2 < np.prod(d) <= self.ranks]
        self.dims = tuple_of(grids[rng.integers(len(grids))])
        self.shape = tuple_of(rng.integers(1, {1: 24, 2: 12, 3: 6}[n], n))
        tops = ((8, 8, 4)[n - 1], 5, 4)
        if wide:
            self.ranks, tops = int(rng.integers(2, 5)), (4, 3, 2)
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
                (self.out_channels, self.channels) if self.kind == "convolution" else (self.channels, self.out_channels)
            )
            self.param_shapes = [(first, second // self.groups, *kernel), (self.out_channels,)][: int(rng.integers(1, 3))]
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
        return f"{self.kind} {self.shape} → {self.out}, {self.window}, {self.mode}, groups {self.groups} on {self.dims}"

    def whole(self, x, W=None, b=None):
        w, one = self.window, [p for p, _ in self.pad]
        if self.kind == "deconvolution":
            return F.deconvolution_nd(x, W, b, w.stride, one, self.out, w.dilation, self.groups)
        if self.kind == "unpooling":
            return F.unpooling_nd(x, w.kernel, w.stride, one, self.out, w.cover_all)
        around = {"constant_values": -np.inf} if self.kind == "max" else {}
        x = F.pad(x, [(0, 0), (0, 0), *self.pad], self.mode, **around)
        if self.kind == "convolution":
            return F.convolution_nd(x, W, b, w.stride, 0, w.cover_all, w.dilation, self.groups)
        if self.kind == "average":
            return F.average_pooling_nd(x, w.kernel, w.stride)
        return (F.max_pooling_nd if self.kind == "max" else F.lp_pooling_nd)(x, w.kernel, w.stride, 0, w.cover_all)

    def spatial(self, x, grid, W=None, b=None):
        w, one = self.window, [p for p, _ in self.pad]
        if self.kind == "deconvolution":
            return F.spatial_deconvolution_nd(x, grid, self.shape, W, b, w.stride, one, self.out, w.dilation, self.groups)
        if self.kind == "unpooling":
            return F.spatial_unpooling_nd(x, grid, self.shape, w.kernel, w.stride, one, self.out, w.cover_all)
        if self.kind == "convolution":
            return F.spatial_convolution_nd(
                x, grid, self.shape, W, b, w.stride, self.pad, w.cover_all, w.dilation, self.groups, mode=self.mode
            )
        if self.kind == "average":
            return F.spatial_average_pooling_nd(x, grid, self.shape, w.kernel, w.stride, self.pad)
        pool = F.spatial_max_pooling_nd if self.kind == "max" else F.spatial_lp_pooling_nd
        return pool(x, grid, self.shape, w.kernel, w.stride, self.pad, w.cover_all)

    def program(self, comm):
        grid = mnpar.SpatialGrid(comm, self.dims)
        have, out = grid.block(self.shape), grid.block(self.out)
        return derivatives(
            lambda x, *params: self.spatial(x, grid, *params),
            cut(self.x, have),
            self.params,
            cut(self.w, out),
            cut(self.v, have),
            self.us,
        )

    def check(self):
        found = mnpar.run(self.program, ranks=self.ranks)
        y, g, gg, *of_params = derivatives(self.whole, self.x, self.params, self.w, self.v, self.us)
        haves, outs = [blocks(shape, self.dims, self.ranks) for shape in (self.shape, self.out)]
        for have, out, (y_r, g_r, gg_r, *of_params_r) in zip(haves, outs, found, strict=True):
            same(y_r, cut(y, out))
            same(g_r, cut(g, have))
            same(gg_r, cut(gg, have))
            for mine, truth in zip(of_params_r, of_params, strict=True):
                same(mine, truth)


def same(found, truth):
    np.testing.assert_allclose(0 * truth if found is None else found, truth, rtol=1e-9, atol=1e-9)


def derivatives(layer, x, params, w, v, us):
    """Output, and first and second gradients of x and of the parameters."""
    variables = [mnpar.Variable(a.copy()) for a in (x, *params)]
    y = layer(*variables)
    gs = mnpar.grad([F.sum(F.sin(y) * y * w)], variables, enable_double_backprop=True)
    mnpar.backward([F.sum(F.sin(g) * u) for g, u in zip(gs, (v, *us), strict=True) if g is not None])
    arrays = [None if g is None else g.array for g in gs]
    return [y.array, arrays[0], variables[0].grad, *arrays[1:], *[p.grad for p in variables[1:]]]


@pytest.mark.parametrize("first", range(0, COUNT, PIECE))
def test_a_layer_on_any_grid_has_the_outputs_and_both_gradients_of_one_process(first, monkeypatch):
    # small blocks too compute what needs no halo while that is on its way
    monkeypatch.setattr(blockwise, "WORTH_HIDING", 0)
    for seed in range(first, min(first + PIECE, COUNT)):
        layer = Layer(seed)
        try:
            layer.check()
        except BaseException as error:
            error.add_note(f"seed {seed}: {layer}")
            raise


# ---- what is no window ----

# a layer in one process, the same on blocks, the shapes of its parameters, the shape of its output's whole
SHAPE = (7, 5)
OTHERS = {
    "local contrast normalization": (
        lambda x: F.local_contrast_normalization(x, (3, 5)),
        lambda x, grid: F.spatial_local_contrast_normalization(x, grid, SHAPE, (3, 5)),
        [],
        SHAPE,
    ),
    "layer normalization": (
        lambda x, g, b: F.layer_normalization(x, g, b),
        lambda x, grid, g, b: F.spatial_layer_normalization(x, grid, SHAPE, g, b),
        [(4, *SHAPE)] * 2,
        SHAPE,
    ),
    "layer normalization of each channel": (
        lambda x, g, b: F.layer_normalization(x, g, b),
        lambda x, grid, g, b: F.spatial_layer_normalization(x, grid, SHAPE, g, b),
        [SHAPE] * 2,
        SHAPE,
    ),
    "group normalization": (
        lambda x, g, b: F.group_normalization(x, 2, g, b),
        lambda x, grid, g, b: F.spatial_group_normalization(x, grid, SHAPE, 2, g, b),
        [(4,)] * 2,
        SHAPE,
    ),
    "dropout": (
        lambda x: F.dropout(x, 0.4, rng=np.random.default_rng(5)),
        lambda x, grid: F.spatial_dropout(x, grid, SHAPE, 0.4, rng=np.random.default_rng(5)),
        [],
        SHAPE,
    ),
    "resizing": (
        lambda x: F.resize_images(x, (9, 3)),
        lambda x, grid: F.spatial_resize_images(x, grid, SHAPE, (9, 3)),
        [],
        (9, 3),
    ),
    "resizing, edges": (
        lambda x: F.resize_images(x, (4, 11), align_corners=False),
        lambda x, grid: F.spatial_resize_images(x, grid, SHAPE, (4, 11), align_corners=False),
        [],
        (4, 11),
    ),
    "resizing, nearest": (
        lambda x: F.resize_images(x, (14, 2), mode="nearest"),
        lambda x, grid: F.spatial_resize_images(x, grid, SHAPE, (14, 2), mode="nearest"),
        [],
        (14, 2),
    ),
    "depthwise convolution": (
        lambda x, W, b: F.depthwise_convolution_2d(x, W, b, 2, 1),
        lambda x, grid, W, b: F.spatial_depthwise_convolution_2d(x, grid, SHAPE, W, b, 2, 1),
        [(2, 4, 3, 3), (8,)],
        (4, 3),
    ),
    "average pooling without its padding": (
        lambda x: F.average_pooling_nd(x, 3, 2, 1, pad_value=None),
        lambda x, grid: F.spatial_average_pooling_nd(x, grid, SHAPE, 3, 2, 1, pad_value=None),
        [],
        (4, 3),
    ),
    "pooling by the third norm": (
        lambda x: F.lp_pooling_nd(x, 3, 1, p=3),
        lambda x, grid: F.spatial_lp_pooling_nd(x, grid, SHAPE, 3, 1, p=3),
        [],
        (5, 3),
    ),
}
GRIDS = [(1, 1), (1, 3), (5, 1), (3, 2), (2, 4), (2, 2), (1, 7)]


@pytest.mark.parametrize("dims", GRIDS, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_too(name, dims):
    whole, spatial, params, out_shape = OTHERS[name]
    rng = np.random.default_rng(3)
    x, us = rng.standard_normal((2, 4, *SHAPE)), [rng.standard_normal(shape) for shape in params]
    params, v = [rng.standard_normal(shape) + 2 for shape in params], rng.standard_normal(x.shape)
    w = rng.standard_normal(whole(x, *params).shape)

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        have, out = grid.block(SHAPE), grid.block(out_shape)
        return derivatives(lambda x, *ps: spatial(x, grid, *ps), cut(x, have), params, cut(w, out), cut(v, have), us)

    y, g, gg, *of_params = derivatives(whole, x, params, w, v, us)
    ranks = int(np.prod(dims))
    for have, out, found in zip(blocks(SHAPE, dims), blocks(out_shape, dims), mnpar.run(program, ranks=ranks), strict=True):
        same(found[0], cut(y, out))
        same(found[1], cut(g, have))
        same(found[2], cut(gg, have))
        for mine, truth in zip(found[3:], of_params, strict=True):
            same(mine, truth)


def columns_of(W, grid, channels, shape):
    """A rank's columns of a matrix (out, C·H·W)."""
    return cut(W.reshape(len(W), channels, *shape), grid.block(shape)).reshape(len(W), -1).copy()


TO_ALL = {
    "average": (lambda x: F.average(x, axis=(2, 3)), F.spatial_global_average_pooling),
    "max": (lambda x: F.max_pooling_nd(x, SHAPE, cover_all=False).reshape(x.shape[:2]), F.spatial_global_max_pooling),
}


@pytest.mark.parametrize("integers", [False, True], ids=["", "ties"])
@pytest.mark.parametrize("dims", GRIDS, ids=str)
@pytest.mark.parametrize("name", TO_ALL)
def test_a_loss_of_the_whole_image_that_all_ranks_compute_counts_once(name, dims, integers):
    whole, spatial = TO_ALL[name]
    rng = np.random.default_rng(4)
    x, v = rng.standard_normal((2, 3, *SHAPE)), rng.standard_normal((2, 3, *SHAPE))
    x, w = x.round() if integers else x, rng.standard_normal((2, 3))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        have = grid.block(SHAPE)
        return derivatives(lambda x: spatial(x, grid, SHAPE), cut(x, have), [], w, cut(v, have), [])

    y, g, gg = derivatives(whole, x, [], w, v, [])
    for have, (y_r, g_r, gg_r) in zip(blocks(SHAPE, dims), mnpar.run(program, ranks=int(np.prod(dims))), strict=True):
        same(y_r, y)
        same(g_r, cut(g, have))
        same(gg_r, cut(gg, have))


@pytest.mark.parametrize("dims", GRIDS, ids=str)
def test_a_matrix_cut_like_the_blocks_gives_what_the_whole_one_gives(dims):
    rng = np.random.default_rng(4)
    x, v = rng.standard_normal((2, 3, *SHAPE)), rng.standard_normal((2, 3, *SHAPE))
    W, U = rng.standard_normal((2, 4, 3 * 35))
    b, u, w = rng.standard_normal(4), rng.standard_normal(4), rng.standard_normal((2, 4))

    def program(comm):
        grid = mnpar.SpatialGrid(comm, dims)
        have, (mine, my_u) = grid.block(SHAPE), [columns_of(a, grid, 3, SHAPE) for a in (W, U)]
        found = derivatives(
            lambda x, W, b: F.spatial_linear(x, grid, SHAPE, W, b), cut(x, have), [mine, b], w, cut(v, have), [my_u, u]
        )
        return found, grid

    y, g, gg, gW, gb, ggW, ggb = derivatives(F.linear, x, [W, b], w, v, [U, u])
    for (found, grid), have in zip(mnpar.run(program, ranks=int(np.prod(dims))), blocks(SHAPE, dims), strict=True):
        truth = [y, cut(g, have), cut(gg, have), columns_of(gW, grid, 3, SHAPE), gb, columns_of(ggW, grid, 3, SHAPE), ggb]
        for mine, theirs in zip(found, truth, strict=True):
            same(mine, theirs)
