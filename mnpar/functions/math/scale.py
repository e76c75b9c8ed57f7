"""bias and scale: y is added to, or multiplied with, some axes of x."""

from __future__ import annotations

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.shape import reshape
from mnpar.functions.math.arithmetic import Add, Mul
from mnpar.kernels import arithmetic as kernel
from mnpar.variable import Variable, as_variable


def align_axes(name: str, x: Variable, y: Variable, axis: int) -> Variable:
    """y with axes of length 1 around it, so that its first axis meets x's ``axis``."""
    if not 0 <= axis <= x.ndim - y.ndim or x.shape[axis : axis + y.ndim] != y.shape:
        raise ValueError(f"{name}: shape {y.shape} is not that of x {x.shape} from axis {axis} on")
    return reshape(y, (1,) * axis + y.shape + (1,) * (x.ndim - axis - y.ndim))


class Bias(Add):
    """``z = x + y`` with a y that is the same for all samples and along the last axes."""

    def forward(self, x: Array, y: Array) -> Array:
        return (
            kernel.add_channel(x, y)
            if kernel.add_channel.takes(x)
            else x + _repeat_over_sample(y, x)
        )


def bias(x: Variable | Array, y: Variable | Array, axis: int = 1) -> Variable:
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
    return Bias().apply((x, align_axes("bias", x, y, axis)))[0]


class Scale(Mul):
    """``z = x y`` with a y that is the same for all samples and along the last axes."""

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        if kernel.scale_channel.takes(x):
            z: Array = kernel.scale_channel(x, y)
            return z
        return x * _repeat_over_sample(y, x)

    def backward(self, gz: Variable | Array) -> InputGradients:
        if isinstance(gz, Variable) or not all([z.requires_grad for z in self.inputs]):
            return super().backward(gz)
        x, y = self.get_retained_inputs()
        if not kernel.scale_channel_gradients.takes(x):
            return super().backward(gz)
        gx, gy = kernel.scale_channel_gradients(gz, x, y)
        return gx, gy.astype(y.dtype, copy=False)


def scale(x: Variable | Array, y: Variable | Array, axis: int = 1) -> Variable:
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
    return Scale().apply((x, align_axes("scale", x, y, axis)))[0]


def _repeat_over_sample(y: Array, x: Array) -> Array:
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
