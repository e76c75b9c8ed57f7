"""Complex numbers: their parts, and their conjugates.

The gradient g of complex numbers z is such that the loss changes by Re(g · dz), as in JAX; so the
gradient of real numbers that became complex is its real part.
"""

from __future__ import annotations

from mnpar.backend import Array, get_array_module
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, without_gradient
from mnpar.variable import Variable, as_variable


class Real(GenericFunction):
    """``y = Re z``; ``gz = gy``: Re(gy dz) = gy Re(dz)."""

    def forward(self, z: Array) -> Array:
        return z.real.copy()

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy.astype(self.inputs[0].dtype)


def real(x: Variable | Array) -> Variable:
    """The real part of each element; of real numbers themselves. A Variable has it as ``x.real``
    too.

    Args:
        x: an array or Variable. If it is complex, the gradient that it gets is such that the loss
            changes by Re(g · dx).

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.real(np.array([1 + 2j, 3j])).array
        array([1., 0.])
    """
    x = as_variable(x)
    return Real().apply((x,))[0] if x.dtype.kind == "c" else x


class Imag(GenericFunction):
    """``y = Im z``; ``gz = -i gy``: Re(-i gy dz) = gy Im(dz)."""

    def forward(self, z: Array) -> Array:
        return z.imag.copy()

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy.astype(self.inputs[0].dtype) * -1j


def imag(x: Variable | Array) -> Variable:
    """The imaginary part of each element, a real number; of real numbers 0; also ``x.imag``. See
    :func:`real`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.imag(np.array([1 + 2j, 3j])).array
        array([2., 3.])
    """
    x = as_variable(x)
    return (
        Imag().apply((x,))[0]
        if x.dtype.kind == "c"
        else without_gradient("imag", get_array_module(x.array).zeros_like, x)
    )


class Conj(GenericFunction):
    """``y = z*``; ``gz = gy*``: Re(gy dz*) = Re(gy* dz)."""

    def forward(self, z: Array) -> Array:
        return z.conj()

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: gy.conj()


def conj(x: Variable | Array) -> Variable:
    """The complex conjugate of each element; real numbers are their own. As ``x.conj()`` too; see
    :func:`real`.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.conj(np.array([1 + 2j, 3j])).array
        array([1.-2.j, 0.-3.j])
    """
    x = as_variable(x)
    return Conj().apply((x,))[0] if x.dtype.kind == "c" else x
