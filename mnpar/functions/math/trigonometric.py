"""The angles of given sines, cosines and points: inverse trigonometric functions of each
element.

Functions of each element by itself: exponentials, logarithms, roots, angles.

Where the derivative is a function of the result (exp, sqrt) the result is kept and the argument can
be freed. The file is long because there are many; each is short.
"""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.math.sqrt import Sqrt
from mnpar.functions.node import check_shapes, either, plain
from mnpar.variable import Variable, as_variable


class Arcsin(FunctionNode):
    """``y = arcsin x``; ``gx = gy / √(1 - x²)``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).arcsin(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy / either(Sqrt(), 1 - x * x)


class Arctanh(FunctionNode):
    """``y = artanh x``; ``gx = gy / (1 - x²)``, computed as ``(1 - x)(1 + x)``, which is accurate
    near ±1.
    """

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).arctanh(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy / ((1 - x) * (1 + x))


class Arccos(FunctionNode):
    """``y = arccos x``; ``gx = -gy / √(1 - x²)``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).arccos(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: -gy / either(Sqrt(), 1 - x * x)


class Arctan2(FunctionNode):
    """``z = arctan(y / x)`` in the right quadrant; with ``r² = x² + y²``, ``gy = gz x / r²`` and
    ``gx = -gz y / r²``.
    """

    generic = True

    def forward(self, y: Array, x: Array) -> Array:
        self.retain_inputs((0, 1))
        return backend.get_array_module(x).arctan2(y, x)

    def backward(self, g: Any) -> Any:
        y, x = self.get_retained_inputs()
        xp = backend.get_array_module(plain(x))
        size = xp.maximum(abs(plain(x)), abs(plain(y)))
        far = xp.where((size > 0) & xp.isfinite(size), size, xp.ones((), size.dtype))
        # neither square overflows, and the larger one is 1
        x = x / far
        y = y / far
        r2 = x * x + y * y + (size == 0)  # at (0, 0), which has no angle, the gradient is 0
        return lambda: g * (x / r2 / far), lambda: -g * (y / r2 / far)


def arcsin(x: Any) -> Variable:
    """The angle, -π/2 to π/2, whose sine is x; its gradient at ±1 is infinite.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arcsin(np.array([0.0, 0.5])).array.round(4)
        array([0.    , 0.5236])
    """
    return Arcsin().apply((x,))[0]


def arccos(x: Any) -> Variable:
    """The angle, 0 to π, whose cosine is x; its gradient at ±1 is infinite.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arccos(np.array([0.0, 0.5])).array.round(4)
        array([1.5708, 1.0472])
    """
    return Arccos().apply((x,))[0]


def arctanh(x: Any) -> Variable:
    """The number whose hyperbolic tangent is x; infinite at ±1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arctanh(np.array([0.0, 0.5])).array.round(4)
        array([0.    , 0.5493])
    """
    return Arctanh().apply((x,))[0]


def arctan2(x1: Any, x2: Any) -> Variable:
    """The angle, -π to π, of the point whose height is ``x1`` and whose width is ``x2``.

    Args:
        x1, x2: arrays or Variables of one shape.

    Raises:
        ValueError: the shapes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arctan2(np.array([1.0, 1.0]), np.array([1.0, -1.0])).array.round(4)
        array([0.7854, 2.3562])
    """
    x1 = as_variable(x1)
    x2 = as_variable(x2)
    check_shapes("arctan2", x1, x2)
    return Arctan2().apply((x1, x2))[0]


class Tan(FunctionNode):
    """``y = tan x``; ``gx = gy (1 + y²)``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return backend.get_array_module(x).tan(x)

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy * (y * y + 1)


class Sin(FunctionNode):
    """``y = sin x``; ``gx = gy cos x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).sin(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(Cos(), x)


class Cos(FunctionNode):
    """``y = cos x``; ``gx = -gy sin x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).cos(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * -either(Sin(), x)


def sin(x: Any) -> Variable:
    """The sine of each element, in radians.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sin(np.array([0.0, np.pi / 2])).array
        array([0., 1.])
    """
    return Sin().apply((x,))[0]


def cos(x: Any) -> Variable:
    """The cosine of each element, in radians.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cos(np.array([0.0, np.pi])).array
        array([ 1., -1.])
    """
    return Cos().apply((x,))[0]


class Arctan(FunctionNode):
    """``y = arctan x``; ``gx = gy / (1 + x²)``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).arctan(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy / (x * x + 1)


class Sinh(FunctionNode):
    """``y = sinh x``; ``gx = gy cosh x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).sinh(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(Cosh(), x)


class Cosh(FunctionNode):
    """``y = cosh x``; ``gx = gy sinh x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return backend.get_array_module(x).cosh(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * either(Sinh(), x)


def arctan(x: Any) -> Variable:
    """The angle whose tangent is x.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.arctan(np.array([0.0, 1.0])).array.round(4)
        array([0.    , 0.7854])
    """
    return Arctan().apply((x,))[0]


def sinh(x: Any) -> Variable:
    """The hyperbolic sine.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sinh(np.array([0.0, 1.0])).array.round(4)
        array([0.    , 1.1752])
    """
    return Sinh().apply((x,))[0]


def cosh(x: Any) -> Variable:
    """The hyperbolic cosine.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cosh(np.array([0.0, 1.0])).array.round(4)
        array([1.    , 1.5431])
    """
    return Cosh().apply((x,))[0]


def tan(x: Any) -> Variable:
    """The tangent.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.tan(np.array([0.0, 1.0])).array.round(4)
        array([0.    , 1.5574])
    """
    return Tan().apply((x,))[0]
