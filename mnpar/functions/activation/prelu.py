"""PReLU, a leaky relu whose slope is learnt."""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.broadcast import unbroadcast
from mnpar.functions.math.scale import align_axes
from mnpar.functions.node import GenericFunction, array_of
from mnpar.kernels import activation as kernel
from mnpar.variable import Variable, as_variable


class PReLU(GenericFunction):
    """max(x, 0) + W·min(x, 0), W of a shape that broadcasts to x's."""

    def forward(self, x: Array, W: Array) -> Array:
        self.retain_inputs((0, 1))
        y: Array = kernel.prelu(x, W)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, W = self.get_retained_inputs()
        if not isinstance(gy, Variable) and all([z.requires_grad for z in self.inputs]):
            gx, total = kernel.prelu_gradients(gy, x, W)
            return gx, total.astype(W.dtype, copy=False)
        negative = (array_of(x) < 0).astype(x.dtype)

        def gW() -> Any:
            g = gy * x * negative
            g = g.astype("f") if g.dtype.char == "e" else g  # sums of halves
            return unbroadcast(g, W.shape)

        return lambda: gy * (negative * W + (1 - negative)), gW


def prelu(x: Variable | Array, W: Variable | Array) -> Variable:
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
    return PReLU().apply((x, align_axes("prelu", x, W, 1) if W.ndim else W))[0]
