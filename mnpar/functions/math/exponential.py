"""Functions of each element by itself: exponentials, logarithms, roots, angles.

Where the derivative is a function of the result (exp, sqrt) the result is kept and the argument can
be freed. The file is long because there are many; each is short.
"""

from __future__ import annotations

import math
from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.variable import Variable


class Exp(FunctionNode):
    """``y = eˣ``; ``gx = gy y``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return backend.get_array_module(x).exp(x)

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy * y


class Expm1(FunctionNode):
    """``y = eˣ - 1``; ``gx = gy (y + 1)``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return backend.get_array_module(x).expm1(x)

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy * (y + 1)


class Log(FunctionNode):
    """``y = log x``; ``gx = gy / x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).log(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy / x


class Log1p(FunctionNode):
    """``y = log(1 + x)``; ``gx = gy / (1 + x)``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).log1p(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy / (x + 1)


def exp(x: Any) -> Variable:
    """e to the power of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.exp(np.array([0.0, 1.0])).array
        array([1.        , 2.71828183])
    """
    return Exp().apply((x,))[0]


def expm1(x: Any) -> Variable:
    """``exp(x) - 1``, exact for small ``x`` too.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.expm1(np.array(1e-20)).array)
        1e-20
    """
    return Expm1().apply((x,))[0]


def log(x: Any) -> Variable:
    """The natural logarithm of each element.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log(np.array([1.0, 2.0])).array
        array([0.        , 0.69314718])
    """
    return Log().apply((x,))[0]


def log1p(x: Any) -> Variable:
    """``log(1 + x)``, exact for small ``x`` too.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> float(F.log1p(np.array(1e-20)).array)
        1e-20
    """
    return Log1p().apply((x,))[0]


def log2(x: Any) -> Variable:
    """The logarithm to base 2.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log2(np.array([1.0, 8.0])).array
        array([0., 3.])
    """
    y: Variable = log(x) * (1 / math.log(2))
    return y


def log10(x: Any) -> Variable:
    """The logarithm to base 10.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.log10(np.array([1.0, 100.0])).array.round(12)
        array([0., 2.])
    """
    y: Variable = log(x) * (1 / math.log(10))
    return y
