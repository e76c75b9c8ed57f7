"""Real and imaginary parts, and conjugates.

Of complex numbers a gradient says how a real loss changes: by Re(g dz). So Re(gy dRe z) = Re(gy dz) gives ``real`` its
gradient, Re(gy dIm z) = Re(-i gy dz) that of ``imag``, and Re(gy conj(dz)) = Re(conj(gy) dz) that of ``conj``.
"""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.generic import either
from mnpar.variable import Variable


class Real(FunctionNode):
    """``y = Re z``; ``gz = gy``."""

    generic = True

    def forward(self, z: Array) -> Array:
        return z.real.copy()  # not a view with gaps

    def backward(self, gy: Any) -> Any:
        return gy


class Imag(FunctionNode):
    """``y = Im z``; ``gz = -i gy``, of real z none."""

    generic = True

    def forward(self, z: Array) -> Array:
        return z.imag.copy()

    def backward(self, gy: Any) -> Any:
        return None if self.inputs[0].dtype.kind != "c" else lambda: gy * -1j


class Conj(FunctionNode):
    """``y = conj z``; ``gz = conj gy``."""

    generic = True

    def forward(self, z: Array) -> Array:
        return z.conj()

    def backward(self, gy: Any) -> Any:
        return lambda: either(Conj(), gy)


def real(z: Any) -> Variable:
    """The real part; also ``z.real``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.real(np.array([1 + 2j])).array
        array([1.])
    """
    return Real().apply((z,))[0]


def imag(z: Any) -> Variable:
    """The imaginary part; also ``z.imag``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.imag(np.array([1 + 2j])).array
        array([2.])
    """
    return Imag().apply((z,))[0]


def conj(z: Any) -> Variable:
    """The conjugate; also ``z.conj()``.

    Example:
        >>> import numpy as np, mnpar
        >>> z = mnpar.Variable(np.array([1 + 2j]))
        >>> (z * z.conj()).real.array
        array([5.])
    """
    return Conj().apply((z,))[0]
