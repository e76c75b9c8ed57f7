"""Random networks of ordinary functions on random grids, against one process: outputs, gradients
and gradients of gradients.

``MNPAR_NETWORKS=20000 pytest tests/functions/divided/test_random_networks.py`` tries as many as one
likes; ``MNPAR_NETWORKS_FIRST`` is the first seed.
"""

import os

import numpy as np
import pytest

import mnpar
import mnpar.functions as F
from mnpar.errors import LayoutError
from mnpar.plans import Box, Window

PIECE = 20
FIRST = int(os.environ.get("MNPAR_NETWORKS_FIRST", 0))
COUNT = FIRST + int(os.environ.get("MNPAR_NETWORKS", 120))
KINDS = [
    *["convolution"] * 3,
    "padded",
    *["deconvolution", "max", "average", "average", "lp", "unpooling", "batch", "group", "layer"],
    *["relu", "skip", "flip", "pad", "slice", "roll", "dropout", "response", "softmax", "mean"],
    *["shuffle", "permutate", "concat", "crop", "scale", "resize", "sign", "halo", "halo"],
]
SIZES = {1: 24, 2: 12, 3: 6}  # the longest axis of images with so many


def with_halos(h, window, mode):
    """What windows read of the padded images: an exchange, or what it is in one process."""
    if h.layout is not None:
        return F.halo_exchange(h, None, None, *window, mode=mode)
    y = F.pad(h, [(0, 0), (0, 0), *window.pad], mode)
    read = window.reads(Box.whole(window.outputs(h.shape[2:]))).shape
    return y[(..., *[slice(0, stop) for stop in read])]


def draw_halo(rng, n, h):
    """One exchange, and two or three windows after it: at once, beside each other or one after the
    other; or a stencil of slices.
    """
    per_axis = lambda low, high: tuple(int(i) for i in rng.integers(low, high, n))
    C, first, second, step = h.shape[1], per_axis(1, 4), per_axis(1, 4), per_axis(1, 3)
    dilate = per_axis(1, 3)
    pad = [(int(a), int(b)) for a, b in rng.integers(0, 3, (n, 2))]
    mode = ["constant", "edge", "wrap", "symmetric"][rng.integers(4)]
    spans = [(k - 1) * d + 1 for k, d in zip(first, dilate, strict=True)]
    weights = [(2, C, *first), (C, 2, *second)]
    of = lambda kernel, stride: Window.of(n, kernel, stride, pad)
    if (form := int(rng.integers(4))) == 0:  # two layers of one window, and one that spans as much

        def beside(h, _, W, V):
            z = with_halos(h, Window.of(n, first, step, pad, dilate), mode)
            a = F.convolution_nd(z, W, None, step, 0, dilate=dilate)
            b = F.convolution_nd(F.tanh(z), W * 2, None, step, 0, dilate=dilate)
            return F.concat([a * b, F.average_pooling_nd(z, tuple(spans), step)])

        return beside, weights
    if form == 1:  # one after the other: the second at the stride
        wide = [a + b - 1 for a, b in zip(spans, second, strict=True)]

        def after(h, _, W, V):
            z = with_halos(h, of(wide, step), mode)
            z = F.relu(F.convolution_nd(z, W, None, 1, 0, dilate=dilate)) + 0.1
            return F.convolution_nd(z, V, None, step)

        return after, weights
    if form == 2:  # the first at the stride
        wide = [a + (b - 1) * s for a, b, s in zip(spans, second, step, strict=True)]

        def before(h, _, W, V):
            z = with_halos(h, of(wide, step), mode)
            z = F.convolution_nd(z, W, None, step, 0, dilate=dilate)
            return F.convolution_nd(z, V * z.shape[1])

        return before, weights

    def stencil(h, _, W, V):
        z = with_halos(h, of(spans, step), mode)
        if min(z.shape) == 0:
            raise ValueError("no outputs")
        taps = [
            z[
                (
                    ...,
                    *[
                        slice(j, size - span + 1 + j, s)
                        for j, size, span, s in zip(at, z.shape[2:], spans, step, strict=True)
                    ],
                )
            ]
            for at in ([0] * n, [span - 1 for span in spans], [span // 2 for span in spans])
        ]
        return taps[0] * taps[1] - taps[2]

    return stencil, weights


def draw_layer(rng, n, h):
    """A layer for images ``h`` (N, C, …) of n axes: its function of (h, earlier outputs, weights),
    and the shapes of its weights.
    """
    kind = KINDS[rng.integers(len(KINDS))]
    if kind == "halo":
        return draw_halo(rng, n, h)
    C, size = h.shape[1], h.shape[2:]
    per_axis = lambda low, high: tuple(int(i) for i in rng.integers(low, high, n))
    axis = int(rng.integers(n)) + 2
    if kind in ("convolution", "deconvolution"):
        ksize, stride, dilate, pad = (
            per_axis(1, 8 if n < 3 else 4),
            per_axis(1, 4),
            per_axis(1, 3),
            per_axis(0, 4),
        )
        groups = int(rng.choice([g for g in (1, 2, C) if C % g == 0]))
        out = groups * int(rng.integers(1, 3))
        if kind == "convolution":
            cover = bool(rng.integers(2))
            call = lambda h, _, W, b: F.convolution_nd(
                h, W, b, stride, pad, cover, dilate, groups=groups
            )
            return call, [(out, C // groups, *ksize), (out,)]
        call = lambda h, _, W, b: F.deconvolution_nd(h, W, b, stride, pad, None, dilate, groups)
        return call, [(C, out // groups, *ksize), (out,)]
    if kind == "padded":
        ksize, stride = per_axis(1, 5), per_axis(1, 3)
        pad = [(int(a), int(b)) for a, b in rng.integers(0, 4, (n, 2))]
        modes = ["constant", "edge", "reflect", "symmetric", "wrap"]
        mode = [modes[rng.integers(5)] for _ in range(n)]
        call = lambda h, _, W: F.convolution_nd(h, W, None, stride, pad, mode=mode)
        return call, [(2, C, *ksize)]
    if kind in ("max", "average", "lp"):
        ksize, stride = per_axis(1, 5), per_axis(1, 4)
        pad = tuple(int(rng.integers(0, k // 2 + 1)) for k in ksize)
        if rng.integers(5) == 0:
            ksize, stride, pad = size, 1, 0
        cover = bool(rng.integers(2))
        none = None if rng.integers(2) else 0
        return {
            "max": lambda h, _: F.max_pooling_nd(h, ksize, stride, pad, cover),
            "average": lambda h, _: F.average_pooling_nd(h, ksize, stride, pad, none),
            "lp": lambda h, _: F.lp_pooling_nd(h, ksize, stride, pad, cover, 2),
        }[kind], []
    if kind == "unpooling":
        ksize = per_axis(1, 4)
        return lambda h, _: F.unpooling_nd(h, ksize, cover_all=False), []
    if kind == "batch":
        return lambda h, _, g, b: F.batch_normalization(h, g, b, eps=0.1), [(C,), (C,)]
    if kind == "group":
        groups = int(rng.choice([g for g in (1, C) if C % g == 0]))
        return lambda h, _, g, b: F.group_normalization(h, groups, g, b, 0.1), [(C,), (C,)]
    if kind == "layer":
        return lambda h, _, g, b: F.layer_normalization(h, g, b, 0.1), [(C, *size)] * 2
    if kind == "skip":
        return lambda h, earlier: sum([e for e in earlier if e.shape == h.shape], h * 0.5), []
    if kind == "concat":
        along = int(rng.integers(1, n + 2))
        fits = lambda e, h: (
            e.shape[:along] + e.shape[along + 1 :] == h.shape[:along] + h.shape[along + 1 :]
        )
        return lambda h, earlier: F.concat([*[e for e in earlier if fits(e, h)][-1:], h], along), []
    if kind == "flip":
        return lambda h, _: F.flip(h, axis), []
    if kind == "pad":
        widths = [(0, 0), (0, 0), *[tuple(int(i) for i in rng.integers(0, 3, 2)) for _ in range(n)]]
        mode = ["constant", "edge", "wrap", "symmetric"][rng.integers(4)]
        return lambda h, _: F.pad(h, widths, mode), []
    if kind in ("slice", "crop"):
        step = int(rng.choice([1, 1, 2, -1, -2]))
        low = int(rng.integers(0, size[axis - 2]))
        index = (
            Ellipsis,
            *[slice(None)] * (axis - 2),
            slice(low, None, step),
            *[slice(None)] * (n + 1 - axis),
        )
        return lambda h, _: h[index], []
    if kind == "roll":
        places = int(rng.integers(-4, 5))
        return lambda h, _: F.roll(h, places, axis), []
    if kind == "permutate":
        order = rng.permutation(size[axis - 2])
        return lambda h, _: F.permutate(h, order, axis), []
    if kind == "shuffle":
        order = rng.permutation(C)
        return lambda h, _: h[:, order], []
    if kind == "resize" and n == 2:
        out, mode, corners = per_axis(1, 9), ["nearest", "bilinear"][axis - 2], bool(C % 2)
        return lambda h, _: F.resize_images(h, out, mode, corners), []
    if kind == "sign":
        return lambda h, _: h * F.sign(h), []
    if kind == "dropout":
        return lambda h, _: F.dropout(h, 0.3), []
    if kind == "response":
        return lambda h, _: F.local_response_normalization(h, 3), []
    if kind == "softmax":
        return lambda h, _: F.softmax(h), []
    if kind == "mean":
        return lambda h, _: h - F.mean(h, axis=axis, keepdims=True), []
    if kind == "scale":
        return lambda h, _, s: h * s, [(C, *size)]
    return lambda h, _: F.relu(h) + F.tanh(h), []


class Network:
    """A random network: ``layers``, its weights and an image for it."""

    def __init__(self, seed):
        rng = np.random.default_rng([seed, 11])
        n = int(rng.integers(1, 4))
        self.ranks = int(rng.integers(1, 10))
        fits = [
            d
            for d in np.ndindex(*[self.ranks + 1] * n)
            if self.ranks / 2 < np.prod(d) <= self.ranks
        ]
        self.dims = tuple(int(d) for d in fits[rng.integers(len(fits))])
        shape = tuple(int(i) for i in rng.integers(1, SIZES[n] + 1, n))
        self.image = rng.standard_normal((2, int(rng.integers(1, 4)), *shape))
        self.layers, self.weights = [], []
        h = mnpar.Variable(self.image)
        earlier = []
        wanted = int(rng.integers(1, 7))
        while len(self.layers) < wanted:
            call, shapes = draw_layer(rng, n, h)
            weights = [rng.standard_normal(s) * 0.5 for s in shapes]
            try:
                with np.errstate(all="ignore"):
                    y = call(h, earlier, *weights)
            except ValueError:  # windows that do not fit
                continue
            if y.ndim != n + 2 or y.size == 0 or y.size > 3000 or not np.isfinite(y.array).all():
                continue
            self.layers.append((call, len(weights)))
            self.weights += weights
            earlier.append(h)
            h = y
        self.out = rng.standard_normal(h.shape)
        self.v = rng.standard_normal(self.image.shape)

    def computed(self, comm=None):
        """Output, gradients, and the gradients of a product of the image's gradient."""
        mnpar.random.seed(1)
        image, weights = mnpar.Variable(self.image), [mnpar.Parameter(w) for w in self.weights]
        h = image if comm is None else mnpar.SpatialGrid(comm, self.dims).cut(image)
        params, earlier = iter(weights), []
        for call, count in self.layers:
            y = call(h, earlier, *[next(params) for _ in range(count)])
            earlier.append(h)
            h = y
        loss = F.sum(F.sin(h) * self.out)
        found = [image, *weights]
        (gx,) = mnpar.grad([loss], [image], enable_double_backprop=True)
        second = 0.0 if gx is None else F.sum(gx * self.v)
        mnpar.backward([loss + second])
        y = h if h.layout is None else h.gather()
        return [y.array, None if gx is None else gx.array, *[x.grad for x in found]]


def differs(a, b):
    if a is None or b is None:
        return np.any(a if b is None else b)
    scale = max(1.0, abs(b).max()) if b.size else 1.0
    return a.shape != b.shape or not np.allclose(a, b, rtol=1e-8, atol=1e-9 * scale)


def outcome(seed):
    network = Network(seed)
    expected = network.computed()
    try:
        results = mnpar.run(network.computed, ranks=network.ranks)
    except LayoutError as error:
        return str(error)
    for result in results:
        assert not any(map(differs, result, expected)), (seed, network.dims)
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(FIRST, COUNT, PIECE))
def test_random_networks_compute_what_one_process_does(first):
    outcomes = [outcome(seed) for seed in range(first, min(first + PIECE, COUNT))]
    assert outcomes.count("") > len(outcomes) // 2
