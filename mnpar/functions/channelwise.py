"""bias, scale and prelu, whose parameters broadcast along some axes of x, and maxout."""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.arithmetic import Add, Mul
from mnpar.functions.broadcasting import fit
from mnpar.functions.generic import plain
from mnpar.functions.reduction import max as _max
from mnpar.functions.shape import reshape
from mnpar.variable import Variable, as_variable


class PReLU(FunctionNode):
    """max(x, 0) + W·min(x, 0), W of a shape that broadcasts to x's."""

    generic = True

    def forward(self, x: Array, W: Array) -> Array:
        self.retain_inputs((0, 1))
        xp = backend.get_array_module(x)
        y = xp.asarray(xp.minimum(x, 0))
        y *= W
        y += xp.maximum(x, 0)
        return y

    def backward(self, gy: Any) -> Any:
        x, W = self.get_retained_inputs()
        negative = (plain(x) < 0).astype(x.dtype)

        def gW() -> Any:
            g = gy * x * negative
            g = g.astype("f") if g.dtype.char == "e" else g  # sums of halves
            return fit(g, W.shape)

        return lambda: gy * (negative * W + (1 - negative)), gW


class Bias(Add):
    """``z = x + y`` with a y that is the same for all samples and along the last axes."""

    def forward(self, x: Array, y: Array) -> Array:
        return x + _filled(y, x)


class Scale(Mul):
    """``z = x y`` with a y that is the same for all samples and along the last axes."""

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        return x * _filled(y, x)


def _filled(y: Array, x: Array) -> Array:
    """y in the shape of a sample, if that is small: numpy takes a third less time for long rows
    than for many short ones.
    """
    if (
        x.nbytes <= backend.block_bytes(x) // 8
        or len(x) < 4
        or len(y) > 1
        or y.shape[-1] > 1
        or not x.flags.c_contiguous
    ):
        return y
    if x[:1].nbytes > backend.block_bytes(x) // 4:
        return y
    return backend.get_array_module(x).broadcast_to(y, (1, *x.shape[1:])).copy()


def _stretched(name: str, x: Variable, y: Variable, axis: int) -> Variable:
    """y with axes of length 1 around it, so that its first axis meets x's ``axis``."""
    if not 0 <= axis <= x.ndim - y.ndim or x.shape[axis : axis + y.ndim] != y.shape:
        raise ValueError(f"{name}: shape {y.shape} is not that of x {x.shape} from axis {axis} on")
    return reshape(y, (1,) * axis + y.shape + (1,) * (x.ndim - axis - y.ndim))


def bias(x: Any, y: Any, axis: int = 1) -> Variable:
    """``x + y``, where the axes of ``y`` are those of ``x`` from ``axis`` on.

    Args:
        x: an array or Variable, ``(N, C, …)``.
        y: ``(C,)``, or as many axes as you like.
        axis: of ``x``, where those of ``y`` begin.

    Raises:
        ValueError: the lengths of these axes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.bias(np.zeros((1, 2, 2)), np.array([1.0, 2.0])).array
        array([[[1., 1.],
                [2., 2.]]])
    """
    x = as_variable(x)
    y = as_variable(y)
    return Bias().apply((x, _stretched("bias", x, y, axis)))[0]


def scale(x: Any, y: Any, axis: int = 1) -> Variable:
    """``x * y``, where the axes of ``y`` are those of ``x`` from ``axis`` on.

    Args:
        x: an array or Variable, ``(N, C, …)``.
        y: ``(C,)``, or as many axes as you like.
        axis: of ``x``, where those of ``y`` begin.

    Raises:
        ValueError: the lengths of these axes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.scale(np.ones((1, 2, 2)), np.array([1.0, 2.0])).array
        array([[[1., 1.],
                [2., 2.]]])
    """
    x = as_variable(x)
    y = as_variable(y)
    return Scale().apply((x, _stretched("scale", x, y, axis)))[0]


def prelu(x: Any, W: Any) -> Variable:
    """``x`` where it is positive, ``W * x`` elsewhere, with a slope ``W`` that is learnt; the
    gradient at 0 is 1.

    Args:
        x: an array or Variable, ``(N, C, …)``.
        W: ``()`` for one slope, ``(C,)`` for one of each channel, or more axes of ``x`` after the
            first.

    Raises:
        ValueError: the lengths of these axes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.prelu(np.array([[-1.0, -1.0, 2.0]]), np.array([0.1, 0.2, 0.3])).array
        array([[-0.1, -0.2,  2. ]])

    Source:
        He et al., "Delving deep into rectifiers", ICCV 2015.
    """
    x = as_variable(x)
    W = as_variable(W)
    return PReLU().apply((x, _stretched("prelu", x, W, 1) if W.ndim else W))[0]


def maxout(x: Any, pool_size: int, axis: int = 1) -> Variable:
    """The largest of each ``pool_size`` neighbours along an axis; equally large ones all get the
    gradient.

    Args:
        x: an array or Variable, ``(N, C * pool_size, …)``.
        pool_size: how many make one.
        axis: which axis becomes shorter.

    Returns:
        ``(N, C, …)``.

    Raises:
        ValueError: ``pool_size`` does not divide the axis.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.maxout(np.array([[1.0, 4.0, 3.0, 2.0]]), 2).array
        array([[4., 3.]])

    Source:
        Goodfellow et al., "Maxout networks", ICML 2013.
    """
    x = as_variable(x)
    if pool_size < 1 or not -x.ndim <= axis < x.ndim or x.shape[axis] % pool_size:
        raise ValueError(
            f"maxout: axis {axis} of x {x.shape} cannot be cut into pools of {pool_size}"
        )
    axis %= x.ndim
    cut = x.shape[axis] // pool_size, pool_size
    return _max(reshape(x, x.shape[:axis] + cut + x.shape[axis + 1 :]), axis=axis + 1)
