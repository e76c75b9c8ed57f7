"""Functions of each element by itself: exponentials, logarithms, roots, angles.

Where the derivative is a function of the result (exp, sqrt) the result is kept and the argument can
be freed. The file is long because there are many; each is short.
"""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.variable import Variable


class Sqrt(FunctionNode):
    """``y = √x``; ``gx = gy / 2y``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return backend.get_array_module(x).sqrt(x)

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy / (y * 2)


class Rsqrt(FunctionNode):
    """``y = 1 / √x``; ``gx = -½ gy y / x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        y = backend.get_array_module(x).sqrt(x)
        return 1 / y

    def backward(self, gy: Any) -> Any:
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        return lambda: gy * y / x * -0.5


class Square(FunctionNode):
    """``y = x²``; ``gx = 2 gy x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return x * x

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * x * 2


def sqrt(x: Any) -> Variable:
    """The square root of each element; its gradient at 0 is infinite.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sqrt(np.array([4.0, 9.0])).array
        array([2., 3.])
    """
    return Sqrt().apply((x,))[0]


def square(x: Any) -> Variable:
    """Each element times itself.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.square(np.array([-2.0, 3.0])).array
        array([4., 9.])
    """
    return Square().apply((x,))[0]


def rsqrt(x: Any) -> Variable:
    """1 / √x; infinite at 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.rsqrt(np.array([1.0, 4.0])).array
        array([1. , 0.5])
    """
    return Rsqrt().apply((x,))[0]
