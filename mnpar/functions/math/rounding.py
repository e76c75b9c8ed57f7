"""Rounding, signs and remainders. Piecewise constant functions have the derivative 0: no gradient
flows through them.
"""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.array.broadcast import fit
from mnpar.functions.node import constant, operand
from mnpar.variable import Variable


def _flat(name: str, x: Any) -> Variable:
    return constant(name, lambda array: getattr(backend.get_array_module(array), name)(array), x)


def floor(x: Any) -> Variable:
    """The largest whole number that is not above each element; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.floor(np.array([1.5, -1.5])).array
        array([ 1., -2.])
    """
    return _flat("floor", x)


def ceil(x: Any) -> Variable:
    """The smallest whole number that is not below each element; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.ceil(np.array([1.5, -1.5])).array
        array([ 2., -1.])
    """
    return _flat("ceil", x)


def fix(x: Any) -> Variable:
    """Each element without what stands behind its point; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.fix(np.array([1.5, -1.5])).array
        array([ 1., -1.])
    """
    return constant("fix", lambda array: backend.get_array_module(array).trunc(array), x)


def sign(x: Any) -> Variable:
    """1, -1, or 0 for 0; nothing flows back.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sign(np.array([1.5, 0.0, -1.5])).array
        array([ 1.,  0., -1.])
    """
    return _flat("sign", x)


class Fmod(FunctionNode):
    """x - fix(x / d) d, in which fix(x / d) is a constant."""

    generic = True

    def forward(self, x: Array, d: Array) -> Array:
        xp = backend.get_array_module(x, d)
        self.times = xp.trunc(x / d)
        return xp.fmod(x, d)

    def backward(self, gy: Any) -> Any:
        x, d = self.inputs
        return lambda: fit(gy * 1, x.shape), lambda: fit(gy * -self.times, d.shape)


def fmod(x: Any, divisor: Any) -> Variable:
    """What is left of each element when the divisor is taken away as often as it fits; it has the
    sign of ``x``.

    Args:
        x, divisor: arrays, Variables or numbers that broadcast.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.fmod(np.array([7.5, -7.5]), 2).array
        array([ 1.5, -1.5])
    """
    return Fmod().apply((operand(x, divisor), operand(divisor, x)))[0]
