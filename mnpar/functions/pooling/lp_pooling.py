"""Lp pooling: the p-norm of each window."""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, array_of
from mnpar.functions.normalization.moments import cast
from mnpar.functions.pooling.pooling import Unpooling, pooling_windows
from mnpar.kernels.dtypes import compute_dtype, upcast_halves
from mnpar.kernels.windows import PerAxis, Windows
from mnpar.variable import Variable, as_variable


class LpPooling(GenericFunction):
    """y = (Σ |x|ᵖ)^(1/p) over each window. ∂y/∂x = |x|^(p-1)·sign x · y^(1-p), taken as 0 where y
    is 0.
    """

    def __init__(self, windows: Windows, p: float) -> None:
        self.windows, self.p = windows, p

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        xp, p = backend.get_array_module(x), self.p
        x, dtype = upcast_halves(x), x.dtype
        powers = x * x if p == 2 else abs(x) ** p
        first, *rest = self.windows.cells(self.windows.pad_image(powers))
        y = first.copy()
        for cell in rest:
            y += cell
        y = xp.sqrt(y, out=y) if p == 2 else y ** (1 / p)
        return y.astype(dtype, copy=False)

    def backward(self, gy: Variable | Array) -> InputGradients:
        def gx() -> Any:
            (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
            dtype, p = compute_dtype(x), self.p
            some = (array_of(y) != 0).astype(dtype)
            # 1 beside a gradient of 0, where it would be 0
            y, g = (
                cast(y, dtype) + (1 - some),
                cast(gy, dtype) * some,
            )
            spread = Unpooling(self.windows, 1)(g / y if p == 2 else g * y ** (1 - p))
            return spread * self._slope(cast(x, dtype))

        return gx

    def _slope(self, x: Variable | Array) -> Any:
        """|x|^(p-1)·sign x."""
        if self.p == 2:
            return x
        sign = backend.get_array_module(array_of(x)).sign(array_of(x))
        return sign if self.p == 1 else (x * sign) ** (self.p - 1) * sign


def lp_pooling_nd(
    x: Variable | Array,
    ksize: PerAxis,
    stride: PerAxis | None = None,
    pad: PerAxis = 0,
    cover_all: bool = False,
    p: float = 2,
) -> Variable:
    """The p-norm of each window, ``(Σ |x|ᵖ)^(1/p)``: for p = 2 the root of the sum of squares (L2
    pooling).

    Args:
        x: ``(N, C, …)`` with one or more spatial axes; of 16 bits, it is computed in float32.
        ksize, stride, pad: of the windows, a number for each axis or one for all; ``stride=None``
            is ksize.
        cover_all: windows reach every cell.
        p: 1 or more.

    Returns:
        ``(N, C, …)``. Where a window sees zeros only, its gradient is 0.

    Raises:
        ValueError: sizes do not belong together, or p is less than 1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.lp_pooling_nd(np.array([[[3.0, 4.0, 0.0]]]), 2, stride=1).array
        array([[[5., 4.]]])

    Source:
        Le et al., "Building high-level features using large scale unsupervised learning", ICML
        2012.
    """
    x = as_variable(x)
    if p < 1:
        raise ValueError(f"lp_pooling_nd: p = {p} is less than 1, which is no length")
    return LpPooling(
        pooling_windows("lp_pooling_nd", None, x, ksize, stride, pad, cover_all), p
    ).apply((x,))[0]
