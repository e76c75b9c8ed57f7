"""Fourier transforms, of real and imaginary parts in arrays of their own."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, array_of, show_shapes
from mnpar.variable import Variable, as_variable

# the real and the imaginary part of complex numbers
Parts: TypeAlias = tuple[Variable | Array, Variable | Array]


class Fourier(GenericFunction):
    """y = F x along the last axis. With i·ḡ for the gradient g, F (i·ḡ) is i times the conjugate of
    F* g, the gradient of x.
    """

    def __init__(self, method: str) -> None:
        self.method = method

    def forward(self, real: Array, imaginary: Array) -> tuple[Array, Array]:
        xp = backend.get_array_module(real)
        y = getattr(xp.fft, self.method)(real + imaginary * 1j)
        return y.real.astype(real.dtype), y.imag.astype(real.dtype)

    def backward(self, greal: Variable | Array, gimaginary: Variable | Array) -> InputGradients:
        greal = gimaginary * 0 if greal is None else greal
        gimaginary = greal * 0 if gimaginary is None else gimaginary
        adjoint = Fourier(self.method)
        gs = (gimaginary, greal)
        found = cache(
            lambda: (
                adjoint.apply(gs)
                if isinstance(greal, Variable)
                else adjoint.forward(*map(array_of, gs))
            )
        )
        return lambda: found()[1], lambda: found()[0]


def _transform(method: str, x: Parts) -> tuple[Variable, Variable]:
    real, imaginary = [as_variable(part) for part in x]
    if (
        real.shape != imaginary.shape
        or real.ndim < 1
        or real.dtype.kind != "f"
        or real.dtype != imaginary.dtype
    ):
        found = (
            f"{show_shapes((real.shape, imaginary.shape))} of {real.dtype} and {imaginary.dtype}"
        )
        raise ValueError(
            f"{method}: real and imaginary parts are floats of one dtype and shape (…, T), not "
            f"{found}"
        )
    if not real.size:
        return real, imaginary
    return Fourier(method).apply((real, imaginary))  # type: ignore[return-value]


def fft(x: Parts) -> tuple[Variable, Variable]:
    """The discrete Fourier transform along the last axis: y_k = Σ_t x_t exp(-2πi k t / T).

    Args:
        x: real and imaginary part, ``(…, T)`` each.

    Returns:
        Real and imaginary part, of the same shape and dtype.

    Raises:
        ValueError: they are no floats, or their shapes or dtypes differ.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> real, imaginary = F.fft((np.ones(4), np.zeros(4)))
        >>> real.array, imaginary.array
        (array([4., 0., 0., 0.]), array([0., 0., 0., 0.]))
    """
    return _transform("fft", x)


def ifft(x: Parts) -> tuple[Variable, Variable]:
    """The inverse of :func:`fft`, with its factor 1 / T; arguments and results are alike.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.ifft((np.array([4.0, 0.0, 0.0, 0.0]), np.zeros(4)))[0].array
        array([1., 1., 1., 1.])
    """
    return _transform("ifft", x)
