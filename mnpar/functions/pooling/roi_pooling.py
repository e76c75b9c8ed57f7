"""Poolings of regions of interest: rectangles of any size and place, each brought to the same
number of cells.

Each is a linear map of a region, A · region · Bᵀ, with matrices that average or interpolate rows
and columns; those by maxima then pick one of several candidates for each cell. Once it is known
which, that is linear too: so one function and its transpose serve all five. Regions are data:
nothing flows back to their edges. A cell that sees nothing is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.resize_images import weights_at
from mnpar.functions.node import GenericFunction
from mnpar.kernels.windows import Numbers, PerAxis, numbers_per_axis
from mnpar.variable import Variable, as_variable


class Region(NamedTuple):
    """Part of an image, and what makes (oH · g, oW · g') numbers of it; g and g' are the candidates
    for each cell.
    """

    image: int
    rows: slice
    columns: slice
    A: Array
    B: Array


class RegionPooling(GenericFunction):
    """(N, C, H, W) → (R, C, oH, oW): for each region A·x·Bᵀ, of which ``picks`` says the place of
    the candidate that counts.
    """

    def __init__(
        self, regions: list[Region], shape: Numbers, out: Numbers, picks: list[Array] | None = None
    ) -> None:
        self.regions = regions
        self.shape = shape
        self.out = out
        self.picks = picks

    def forward(self, x: Array) -> Array:
        xp = backend.get_array_module(x)
        y = xp.zeros((len(self.regions), self.shape[1], *self.out), x.dtype)
        for r, region in enumerate(self.regions):
            found = self._candidates(region, x)
            if self.picks is None:
                y[r] = found[..., 0]
            else:
                y[r] = xp.take_along_axis(found, self.picks[r][..., None], axis=-1)[..., 0]
        return y

    def _candidates(self, region: Region, x: Array) -> Array:
        """(C, oH, oW, g · g')."""
        found = (
            region.A.astype(x.dtype)
            @ x[region.image, :, region.rows, region.columns]
            @ region.B.T.astype(x.dtype)
        )
        (oH, oW), C = self.out, x.shape[1]
        found = found.reshape(C, oH, len(region.A) // oH, oW, len(region.B) // oW).swapaxes(2, 3)
        result: Array = found.reshape(C, oH, oW, -1)
        return result

    def best(self, x: Array) -> RegionPooling:
        """The function that picks the largest of the candidates; those without any weight are
        none.
        """
        xp, picks = backend.get_array_module(x), []
        for region in self.regions:
            ones = xp.ones((1, 1, *x[region.image, 0, region.rows, region.columns].shape), x.dtype)
            seen = RegionPooling(
                [region._replace(image=0, rows=slice(None), columns=slice(None))], (1, 1), self.out
            )
            counts = seen._candidates(seen.regions[0], ones) > 0
            picks.append(xp.where(counts, self._candidates(region, x), -np.inf).argmax(axis=-1))
        return RegionPooling(self.regions, self.shape, self.out, picks)

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: RegionUnpooling(self)(gy)


class RegionUnpooling(GenericFunction):
    """The transpose of a Pooling."""

    def __init__(self, of: RegionPooling) -> None:
        self.of = of

    def forward(self, y: Array) -> Array:
        xp, (oH, oW) = backend.get_array_module(y), self.of.out
        x = xp.zeros(self.of.shape, y.dtype)
        for r, (image, rows, columns, A, B) in enumerate(self.of.regions):
            g = len(A) // oH
            h = len(B) // oW
            found = y[r][..., None]
            if self.of.picks is not None:
                found = found * (xp.arange(g * h) == self.of.picks[r][..., None])
            found = found.reshape(-1, oH, oW, g, h).swapaxes(2, 3).reshape(-1, oH * g, oW * h)
            x[image, :, rows, columns] += A.T.astype(y.dtype) @ found @ B.astype(y.dtype)
        return x

    def backward(self, gx: Variable | Array) -> InputGradients:
        of = self.of
        return lambda: RegionPooling(of.regions, of.shape, of.out, of.picks)(gx)


Matrix = Callable[[float, float, int, int, int], Any]  # edges, cells, length, axis → a matrix


def _pool(
    who: str,
    x: Variable | Array,
    rois: Variable | Array,
    images: Variable | Array,
    out: Numbers,
    scale: float,
    matrix: Matrix,
    largest: bool,
    whole: bool = False,
) -> Variable:
    """``largest``: of the candidates, not the only one; ``whole``: they are cells of x, not between
    them or means.
    """
    x = as_variable(x)
    rois = backend.to_host(as_variable(rois).array)
    if not whole:
        backend.require_float_dtype(who, x.array)
    images = backend.to_host(as_variable(images).array)
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or images.shape != rois.shape[:1]:
        raise ValueError(
            f"{who}: x (N, C, H, W) and R regions of 4 numbers each, not {x.shape}, "
            f"{rois.shape} and {images.shape}"
        )
    if len(images) and not (images.min() >= 0 and images.max() < len(x)):
        raise ValueError(
            f"{who}: regions are of images {images.min()} to {images.max()}, but x has {len(x)}"
        )
    regions = []
    for n, (top, left, bottom, right) in zip(images, rois * scale, strict=True):
        A = matrix(top, bottom, out[0], x.shape[2], 0)
        B = matrix(left, right, out[1], x.shape[3], 1)
        rows = _used(A)
        columns = _used(B)
        regions.append(
            Region(
                int(n),
                rows,
                columns,
                *[backend.to_device_of(M, x.array) for M in (A[:, rows], B[:, columns])],
            )
        )
    pooling = RegionPooling(regions, x.shape, out)
    return (pooling.best(x.array) if largest else pooling).apply((x,))[0]


def _used(matrix: Array) -> slice:
    """From the first to the last column that is not 0."""
    places = np.flatnonzero(matrix.any(axis=0))
    return slice(int(places[0]), int(places[-1]) + 1) if places.size else slice(0, 0)


def _bins(start: float, end: float, out: int, size: int, inclusive: int = 0) -> list[range]:
    """The cells of each of ``out`` bins; edges are rounded to cells."""
    low = round(start)
    high = round(end)
    step = max(high - low + inclusive, 1) / out
    edges = [(math.floor(i * step) + low, math.ceil((i + 1) * step) + low) for i in range(out)]
    return [range(min(max(a, 0), size), min(max(b, 0), size)) for a, b in edges]


def _averages(start: float, end: float, out: int, size: int, axis: int) -> Array:
    matrix = np.zeros((out, size))
    for i, cells in enumerate(_bins(start, end, out, size)):
        matrix[i, cells] = 1 / max(len(cells), 1)
    return matrix


def _cells(inclusive: int) -> Matrix:
    """Each cell of a bin is a candidate; shorter bins have candidates without weight."""

    def matrix(start: float, end: float, out: int, size: int, axis: int) -> Array:
        bins = _bins(start, end, out, size, inclusive)
        most = max(1, *[len(cells) for cells in bins])
        matrix = np.zeros((out, most, size))
        for i, cells in enumerate(bins):
            matrix[i, range(len(cells)), cells] = 1
        return matrix.reshape(out * most, size)

    return matrix


def _points(ratio: Any, mean: bool) -> Matrix:
    """Each bin is looked at in some even points, between cells; their mean, or candidates."""
    ratios = ratio if isinstance(ratio, tuple | list) else (ratio, ratio)
    if any(n is not None and (int(n) != n or n < 1) for n in ratios):
        raise ValueError(
            f"sampling_ratio = {ratio!r}: None or an integer from 1 on, or one for each axis, "
            "is needed"
        )

    def matrix(start: float, end: float, out: int, size: int, axis: int) -> Array:
        length = max(end - start, 1.0)
        n = math.ceil(length / out) if ratios[axis] is None else int(ratios[axis])
        at = start + (np.arange(out * n) + 0.5) * (length / (out * n))
        weights = (
            weights_at(at.clip(0, size - 1), np.arange(size)) * ((at >= -1) & (at <= size))[:, None]
        )
        return weights.reshape(out, n, size).mean(axis=1) if mean else weights

    return matrix


def _size(who: str, outsize: PerAxis) -> Numbers:
    return numbers_per_axis(f"{who}: outsize", outsize, 2, 1)


def roi_average_pooling_2d(
    x: Variable | Array,
    rois: Variable | Array,
    roi_indices: Variable | Array,
    outsize: PerAxis,
    spatial_scale: float,
) -> Variable:
    """The means of the bins of regions, whose edges are rounded to cells.

    Args:
        x: images ``(N, C, H, W)``.
        rois: regions ``(R, 4)``: y_min, x_min, y_max, x_max.
        roi_indices: of which image each one is, ``(R,)`` integers.
        outsize: ``(oH, oW)`` bins, or a number for both.
        spatial_scale: cells of ``x`` per unit of ``rois``.

    Returns:
        ``(R, C, oH, oW)``. Bins outside the image are 0.

    Raises:
        ValueError: shapes do not belong together, or there is no such image; TypeError: means of
            integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> F.roi_average_pooling_2d(x, np.array([[0, 0, 4, 2]]), np.array([0]), (2, 1), 1.0).array
        array([[[[ 2.5],
                 [10.5]]]])

    Source:
        Girshick, "Fast R-CNN", arXiv 1504.08083, with means.
    """
    out = _size("roi_average_pooling_2d", outsize)
    return _pool(
        "roi_average_pooling_2d", x, rois, roi_indices, out, spatial_scale, _averages, largest=False
    )


def roi_max_pooling_2d(
    x: Variable | Array,
    rois: Variable | Array,
    roi_indices: Variable | Array,
    outsize: PerAxis,
    spatial_scale: float,
) -> Variable:
    """The largest cells of the bins of regions; arguments and result as in
    :func:`roi_average_pooling_2d`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> F.roi_max_pooling_2d(x, np.array([[0, 0, 4, 2]]), np.array([0]), (2, 1), 1.0).array
        array([[[[ 5.],
                 [13.]]]])

    Source:
        Girshick, "Fast R-CNN", arXiv 1504.08083.
    """
    out = _size("roi_max_pooling_2d", outsize)
    return _pool(
        "roi_max_pooling_2d",
        x,
        rois,
        roi_indices,
        out,
        spatial_scale,
        _cells(0),
        largest=True,
        whole=True,
    )


def roi_pooling_2d(
    x: Variable | Array, rois: Variable | Array, outh: int, outw: int, spatial_scale: float
) -> Variable:
    """:func:`roi_max_pooling_2d` with an older form of regions, whose last cells are part of them.

    Args:
        x: images ``(N, C, H, W)``.
        rois: regions ``(R, 5)``: number of the image, x_min, y_min, x_max, y_max.
        outh, outw: the number of bins.
        spatial_scale: cells of ``x`` per unit of ``rois``.

    Returns:
        ``(R, C, outh, outw)``.

    Raises:
        ValueError: shapes do not belong together, or there is no such image.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> F.roi_pooling_2d(x, np.array([[0, 0, 0, 1, 3]]), 2, 1, 1.0).array
        array([[[[ 5.],
                 [13.]]]])
    """
    found = as_variable(rois).array
    if found.ndim != 2 or found.shape[1] != 5:
        raise ValueError(f"roi_pooling_2d: regions (R, 5), not {found.shape}")
    out = _size("roi_pooling_2d", (outh, outw))
    corners = found[:, [2, 1, 4, 3]]
    images = found[:, 0].astype("i8")
    return _pool(
        "roi_pooling_2d",
        x,
        corners,
        images,
        out,
        spatial_scale,
        _cells(1),
        largest=True,
        whole=True,
    )


def roi_average_align_2d(
    x: Variable | Array,
    rois: Variable | Array,
    roi_indices: Variable | Array,
    outsize: PerAxis,
    spatial_scale: float,
    sampling_ratio: int | tuple[int | None, int | None] | None = None,
) -> Variable:
    """The means of even points in the bins of regions, interpolated between cells: nothing is
    rounded.

    Args:
        x, rois, roi_indices, outsize, spatial_scale: as in :func:`roi_average_pooling_2d`.
        sampling_ratio: how many points a bin has along each axis, a number or ``(y, x)``; None:
            about one for each cell.

    Returns:
        ``(R, C, oH, oW)``. Points more than a cell outside the image are 0.

    Raises:
        ValueError: shapes do not belong together, there is no such image, or no points; TypeError:
            integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> F.roi_average_align_2d(x, np.array([[0.5, 0.5, 2.5, 2.5]]), np.array([0]), 1, 1.0).array
        array([[[[7.5]]]])

    Source:
        He et al., "Mask R-CNN", arXiv 1703.06870.
    """
    out = _size("roi_average_align_2d", outsize)
    points = _points(sampling_ratio, mean=True)
    return _pool(
        "roi_average_align_2d", x, rois, roi_indices, out, spatial_scale, points, largest=False
    )


def roi_max_align_2d(
    x: Variable | Array,
    rois: Variable | Array,
    roi_indices: Variable | Array,
    outsize: PerAxis,
    spatial_scale: float,
    sampling_ratio: int | tuple[int | None, int | None] | None = None,
) -> Variable:
    """The largest of even points in the bins of regions; arguments, shapes and errors as in
    :func:`roi_average_align_2d`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
        >>> F.roi_max_align_2d(x, np.array([[0.5, 0.5, 2.5, 2.5]]), np.array([0]), 1, 1.0).array
        array([[[[10.]]]])
    """
    out = _size("roi_max_align_2d", outsize)
    points = _points(sampling_ratio, mean=False)
    return _pool("roi_max_align_2d", x, rois, roi_indices, out, spatial_scale, points, largest=True)
