"""Resizing of images: each axis is a product with a matrix of interpolation weights, which is a
narrow band.

An output lies between two inputs, so a block of outputs is a product with the few inputs around it:
small matrices instead of a large one, nearly all of whose numbers would be 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import index
from typing import NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction
from mnpar.kernels import interpolation
from mnpar.kernels.dtypes import upcast_halves
from mnpar.variable import Variable, as_variable

BLOCK = 64  # outputs: a product of matrices so small is still fast
BANDS_KEPT = 64  # of the sizes met last


class Interpolation(NamedTuple):
    """Some outputs along an axis, the inputs that they see, and their weights (outputs, inputs)."""

    outputs: slice
    inputs: slice
    weights: Array


@dataclass(frozen=True, eq=False)
class Band:
    """The weights of ``out`` cells along an axis in ``size`` cells, in blocks: a narrow band of a
    matrix.
    """

    size: int
    out: int
    parts: Sequence[Interpolation]

    @functools.cached_property
    def neighbours(self) -> interpolation.Neighbours:
        return interpolation.neighbours(self.parts)


class Resize(GenericFunction):
    """Weighted sums of the cells around each place: along the rows and columns of images (N, C, H,
    W), by the band of each; None leaves an axis as it is.
    """

    def __init__(self, bands: Sequence[Band | None]) -> None:
        self.bands = bands

    def forward(self, x: Array) -> Array:
        if (found := self.by_loops(x)) is not None:
            return found
        y = upcast_halves(x)
        for axis, band in enumerate(self.bands, 2):
            if band is not None:
                y = within(functools.partial(self.product, band, axis == 3), y)
        return y.astype(x.dtype, copy=False)

    def by_loops(self, x: Array) -> Array | None:
        size = [n if b is None else b.out for n, b in zip(x.shape[2:], self.bands, strict=True)]
        return interpolation.interpolate(x, size, *self._neighbours(x))

    def _neighbours(self, x: Array) -> list[interpolation.Neighbours]:
        return [
            interpolation.unchanged(n) if band is None else band.neighbours
            for n, band in zip(x.shape[2:], self.bands, strict=True)
        ]

    def product(self, band: Band, last: bool, x: Array) -> Array:
        xp = backend.get_array_module(x)
        y = xp.empty(_resized(x.shape, band.out, last), x.dtype)
        for outputs, inputs, weights in band.parts:
            weights = xp.asarray(weights, y.dtype)
            if last:
                xp.matmul(x[..., inputs], weights.T, out=y[..., outputs])
            else:
                xp.matmul(weights, x[..., inputs, :], out=y[..., outputs, :])
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Gathered(self.bands)(gy)


class Gathered(Resize):
    """The transpose of it: each cell gets what it gave, from all places around it."""

    def by_loops(self, x: Array) -> Array | None:
        size = [n if b is None else b.size for n, b in zip(x.shape[2:], self.bands, strict=True)]
        return interpolation.gather(x, size, *self._neighbours(x))

    def product(self, band: Band, last: bool, x: Array) -> Array:
        y = x
        xp = backend.get_array_module(y)
        x = xp.zeros(_resized(y.shape, band.size, last), y.dtype)
        for outputs, inputs, weights in band.parts:
            weights = xp.asarray(weights, x.dtype)
            if last:
                x[..., inputs] += y[..., outputs] @ weights
            else:
                x[..., inputs, :] += weights.T @ y[..., outputs, :]
        return x

    def backward(self, gx: Variable | Array) -> InputGradients:
        return lambda: Resize(self.bands)(gx)


def within(product: Callable[[Array], Array], x: Array) -> Array:
    """A product with weights that are at least 0, in which an infinite number or a NaN reaches only
    what it has a weight in.

    One product 0 · ∞ would make the whole block NaN.
    """
    xp = backend.get_array_module(x)
    with np.errstate(over="ignore", invalid="ignore"):
        y = product(x)
        few = (x if x.size < y.size else y).ravel()
        if isfinite(few.dot(few)):  # the quickest way to ask them all
            return y
        y = product(xp.where(xp.isfinite(x), x, 0))
        for value, there in ((np.inf, x == np.inf), (-np.inf, x == -np.inf), (np.nan, xp.isnan(x))):
            y += xp.where(product(there.astype(x.dtype)) > 0, value, 0)
    return y


def _resized(shape: tuple[int, ...], n: int, last: bool) -> tuple[int, ...]:
    """The shape with n cells along the axis."""
    return (*shape[:-1], n) if last else (*shape[:-2], n, shape[-1])


MODES = ("bilinear", "nearest")


def resize_images(
    x: Variable | Array,
    output_shape: Sequence[int],
    mode: str = "bilinear",
    align_corners: bool = True,
) -> Variable:
    """Resize images by interpolation.

    Args:
        x: ``(N, C, H, W)``.
        output_shape: ``(oH, oW)``.
        mode: ``'bilinear'``, or ``'nearest'``: cell ⌊i H / oH⌋.
        align_corners: the centres of the corner cells stay where they are; else the outer edges do.
            (``'bilinear'``)

    Returns:
        ``(N, C, oH, oW)``.

    Raises:
        ValueError: no images, no size, or no such mode.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.resize_images(np.array([[[[0.0, 1.0]]]]), (1, 3)).array
        array([[[[0. , 0.5, 1. ]]]])
    """
    y: Variable = as_variable(x)
    if y.ndim != 4 or len(output_shape) != 2 or min(*y.shape[2:], *output_shape) < 1:
        raise ValueError(
            f"resize_images: x (N, C, H, W) to (oH, oW), none of them 0; not {y.shape} to "
            f"{output_shape}"
        )
    if mode not in MODES:
        raise ValueError(f"resize_images knows the modes bilinear and nearest, not {mode!r}")
    y = y if y.dtype.kind == "f" else y.astype("f4")
    bands = [
        band(size, index(out), mode, bool(align_corners))
        for size, out in zip(y.shape[2:], output_shape, strict=True)
    ]
    return Resize(bands).apply((y,))[0]


@functools.lru_cache(maxsize=BANDS_KEPT)
def band(size: int, out: int, mode: str, align_corners: bool) -> Band:
    """Return the weights of ``out`` cells in ``size`` cells."""
    at = places(size, out, mode, align_corners)
    parts = []
    for i in range(0, len(at), BLOCK):
        block = at[i : i + BLOCK]
        first = int(block[0])
        end = min(int(block[-1]) + 2, size)
        parts.append(
            Interpolation(
                slice(i, i + len(block)),
                slice(first, end),
                weights_at(block, np.arange(first, end)),
            )
        )
    return Band(size, out, parts)


def places(size: int, out: int, mode: str, align_corners: bool) -> Array:
    """Return where each of ``out`` cells lies among ``size`` cells."""
    cells = np.arange(out)
    at: Array
    if mode == "nearest":
        at = cells * size // out
    elif align_corners:
        at = cells * ((size - 1) / max(out - 1, 1))
    else:
        at = np.clip((cells + 0.5) * (size / out) - 0.5, 0, size - 1)
    return at


def weights_at(at: Array, cells: Array) -> Array:
    """Return the weights of cells in places among them: (places, cells)."""
    weights: Array = np.maximum(0, 1 - abs(at[:, None] - cells))
    return weights
