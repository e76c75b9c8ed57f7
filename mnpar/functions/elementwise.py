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
from mnpar.functions.generic import either, plain
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


class Tan(FunctionNode):
    """``y = tan x``; ``gx = gy (1 + y²)``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        return backend.get_array_module(x).tan(x)

    def backward(self, gy: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return lambda: gy * (y * y + 1)


class Square(FunctionNode):
    """``y = x²``; ``gx = 2 gy x``."""

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return x * x

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return lambda: gy * x * 2


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


class Absolute(FunctionNode):
    """``y = |x|``; ``gx = gy sign(x)``, which is 0 where ``x = 0``; of complex x the conjugate of x
    / |x|.
    """

    generic = True

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return abs(x)

    def backward(self, gy: Any) -> Any:
        (x,) = self.get_retained_inputs()
        if plain(x).dtype.kind != "c":
            return lambda: gy * backend.get_array_module(x).sign(plain(x))

        def gx() -> Any:
            size = either(Absolute(), x)
            return gy / (size + (plain(size) == 0)) * x.conj()

        return gx


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


def absolute(x: Any) -> Variable:
    """The distance of each element from 0; the gradient at 0 is 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.absolute(np.array([-2.0, 3.0])).array
        array([2., 3.])
    """
    return Absolute().apply((x,))[0]


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


def rsqrt(x: Any) -> Variable:
    """1 / √x; infinite at 0.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.rsqrt(np.array([1.0, 4.0])).array
        array([1. , 0.5])
    """
    return Rsqrt().apply((x,))[0]
