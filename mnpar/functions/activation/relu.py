"""Relu and its relatives, which have pieces: leaky relu, elu, clipped relu ….

Masks are applied by multiplication, not by ``where``, which takes numpy eight times as long.
"""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.joining import concat
from mnpar.functions.math.exponential import exp
from mnpar.functions.math.maximum import Clip
from mnpar.functions.node import GenericFunction, array_of
from mnpar.kernels import activation as kernel
from mnpar.variable import Variable, as_variable


class ReLU(GenericFunction):
    """``y = max(x, 0)``; ``gx = gy`` where ``y > 0``, else 0."""

    def forward(self, x: Array) -> Array:
        self.y = y = kernel.relu(x)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: self._where_positive(gy)

    def _where_positive(self, gy: Variable | Array) -> Any:
        if isinstance(gy, Variable):
            return gy * (self.y > 0).astype(gy.dtype)
        return kernel.relu_gradient(gy, self.y)


def relu(x: Variable | Array) -> Variable:
    """``max(x, 0)``; the gradient at 0 is 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.relu(np.array([-1.0, 2.0])).array
        array([0., 2.])
    """
    return ReLU().apply((x,))[0]


class LeakyReLU(GenericFunction):
    """``y = a x`` with ``a = 1`` where ``x > 0``, else ``slope``; ``gx = a gy``."""

    factor: Array | None

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        y: Array
        if kernel.leaky_relu.takes(x):
            self.factor = None
            y = kernel.leaky_relu(x, self.slope)
        else:
            self.factor = kernel.leaky_slopes(x, self.slope)
            y = x * self.factor
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        if self.factor is not None:
            return lambda: gy * self.factor
        if isinstance(gy, Variable):
            return lambda: gy * kernel.leaky_slopes(array_of(x), self.slope)
        return lambda: kernel.leaky_relu_gradient(gy, x, self.slope)


def leaky_relu(x: Variable | Array, slope: float = 0.2) -> Variable:
    """``x`` where it is positive, ``slope * x`` elsewhere; the gradient at 0 is ``slope``.

    Args:
        x: an array or Variable.
        slope: of the negative side.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.leaky_relu(np.array([-1.0, 2.0])).array
        array([-0.2,  2. ])
    """
    return LeakyReLU(slope).apply((x,))[0]


class ELU(GenericFunction):
    """``y = c x`` where ``x > 0``, else ``c α (eˣ - 1)``; ``gx = c gy`` where ``x > 0``, else ``c α
    eˣ gy``.
    """

    def __init__(self, alpha: float, c: float = 1.0) -> None:
        self.alpha, self.c = alpha, c

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        y: Array = kernel.elu(x, self.alpha, self.c)
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        if not isinstance(gy, Variable):
            return lambda: kernel.elu_gradient(gy, x, self.alpha, self.c)

        def gx() -> Variable:
            # y + α has no digits where eˣ is small
            slope = exp.generic(Clip(None, 0)(x)) * (self.alpha * self.c)
            negative = array_of(x) <= 0
            result: Variable = gy * (slope * negative + ~negative * self.c)
            return result

        return gx


def elu(x: Variable | Array, alpha: float = 1.0) -> Variable:
    """``x`` where it is positive, ``alpha * (exp(x) - 1)`` elsewhere (Clevert et al., 2016); the
    gradient at 0 is ``alpha``.

    Args:
        x: an array or Variable.
        alpha: what negative arguments approach, with the sign changed.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.elu(np.array([-1000.0, 2.0])).array
        array([-1.,  2.])
    """
    return ELU(alpha).apply((x,))[0]


def clipped_relu(x: Variable | Array, z: float = 20.0) -> Variable:
    """``min(max(x, 0), z)``; the gradient at 0 and at z is 0.

    Args:
        x: an array or Variable.
        z: the largest result.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.clipped_relu(np.array([-1.0, 5.0, 30.0])).array
        array([ 0.,  5., 20.])
    """
    if not z > 0:
        raise ValueError(f"clipped_relu: z = {z} must be above 0")
    return Clip(0.0, float(z), ends=False).apply((x,))[0]


def relu6(x: Variable | Array) -> Variable:
    """``min(max(x, 0), 6)``; the gradient at 0 and at 6 is 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.relu6(np.array([-1.0, 5.0, 30.0])).array
        array([0., 5., 6.])
    """
    return Clip(0.0, 6.0, ends=False).apply((x,))[0]


def selu(
    x: Variable | Array, alpha: float = 1.6732632423543772, scale: float = 1.0507009873554805
) -> Variable:
    """A scaled :func:`elu` that keeps mean 0 and variance 1 (Klambauer et al. 2017, arXiv
    1706.02515).

    Args:
        x: an array or Variable.
        alpha, scale: of the formula ``scale · elu(x, alpha)``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.selu(np.array([-1.0, 1.0])).array.round(4)
        array([-1.1113,  1.0507])
    """
    return ELU(alpha, scale).apply((x,))[0]


def crelu(x: Variable | Array, axis: int = 1) -> Variable:
    """Both signs: relu of ``x`` and of ``-x``, side by side (Shang et al. 2016, arXiv 1603.05201).

    Args:
        x: an array or Variable.
        axis: along which they are joined, which becomes twice as long.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.crelu(np.array([[-1.0, 2.0]])).array
        array([[0., 2., 1., 0.]])
    """
    x = as_variable(x)
    return concat((relu(x), relu(-x)), axis=axis)
