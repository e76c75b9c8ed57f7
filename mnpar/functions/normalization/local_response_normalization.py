"""Normalization by length: of a vector, or of the neighbouring channels at each place."""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction, Operand, array_of
from mnpar.functions.normalization.moments import cast
from mnpar.kernels.dtypes import compute_dtype, floating_dtype
from mnpar.kernels.rows import divide_by_lengths, sum_products
from mnpar.variable import Variable, as_variable


class WindowSum(GenericFunction):
    """The sum of each channel and its ``half`` neighbours on either side; the window is symmetric:
    it is its own adjoint.
    """

    def __init__(self, half: int) -> None:
        self.half = half

    def forward(self, x: Array) -> Array:
        y = x.copy()
        for i in range(1, min(self.half + 1, x.shape[1])):
            y[:, i:] += x[:, :-i]
            y[:, :-i] += x[:, i:]
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: WindowSum(self.half)(gy)


class LocalResponseNormalization(GenericFunction):
    """y = x·z^-β with z = k + α·W(x²), where W sums over windows of channels.

    ∂L/∂x = g·z^-β - 2αβ·x·W(g·x·z^-β / z)
    """

    def __init__(self, half: int, k: float, alpha: float, beta: float) -> None:
        self.half = half
        self.k = k
        self.alpha = alpha
        self.beta = beta

    def _parts(self, x: Operand) -> tuple[Operand, Operand]:
        """z and z^-β."""
        z = WindowSum(self.half)(x * x) * self.alpha + self.k
        if self.beta == 0.75:  # the usual one: two roots are five times faster than a power
            return z, 1 / (z * z**0.5) ** 0.5
        return z, z**-self.beta

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        widened = cast(x, compute_dtype(x))
        y = self._parts(widened)[1]
        y *= widened
        return cast(y, floating_dtype(x.dtype))

    def backward(self, gy: Variable | Array) -> InputGradients:
        def gx() -> Any:
            (x,) = self.get_retained_inputs()
            widened = cast(x, compute_dtype(x))
            g = cast(gy, compute_dtype(x))
            z, power = self._parts(widened)
            g = g * power
            return g - widened * WindowSum(self.half)(g * widened / z) * (
                2 * self.alpha * self.beta
            )

        return gx


class Normalize(GenericFunction):
    """y = x / (‖x‖ + ε); where x is 0 it has the derivative 1 / ε of a small vector, and no
    bend.
    """

    def __init__(self, eps: float, axis: int | tuple[int, ...]) -> None:
        self.eps, self.axis = eps, axis

    def _lengths(self, x: Operand) -> tuple[Operand, Operand]:
        """‖x‖, or 1 where that is 0: beside an x of 0 it does not matter, and its root can be
        differentiated; and ‖x‖ + ε.
        """
        squares: Operand = sum_products(x, x, self.axis)
        none = (array_of(squares) == 0).astype(squares.dtype)
        length = (squares + none) ** 0.5
        # in this order: beside 1 a small ε is lost
        return (
            length,
            length - none + self.eps if self.eps else length,
        )

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        widened = cast(x, compute_dtype(x))
        y = divide_by_lengths(widened, self.eps, self.axis)
        if y is None:
            y = widened / self._lengths(widened)[1]
        return cast(y, floating_dtype(x.dtype))

    def backward(self, gy: Variable | Array) -> InputGradients:
        def gx() -> Any:
            (x,) = self.get_retained_inputs()
            widened = cast(x, compute_dtype(x))
            g = cast(gy, compute_dtype(x))
            length, whole = self._lengths(widened)
            return g / whole - widened * (
                sum_products(g, widened, self.axis) / whole / whole / length
            )

        return gx


def local_response_normalization(
    x: Variable | Array, n: int = 5, k: float = 2, alpha: float = 1e-4, beta: float = 0.75
) -> Variable:
    """Divide each element by ``(k + alpha * s) ** beta``, where s sums the squares of ``n``
    channels around it.

    Args:
        x: ``(N, C, …)``; of 16 bits, it is computed in float32.
        n: width of the window: ``n // 2`` channels to either side, fewer at the ends.
        k, alpha, beta: see above.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: ``x`` has no channels, or ``n`` is less than 1.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.local_response_normalization(
        ...     np.array([[3.0, 4.0, 0.0]]), n=3, k=0, alpha=1, beta=0.5
        ... ).array
        array([[0.6, 0.8, 0. ]])

    Source:
        Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
        networks", NIPS 2012.
    """
    x = as_variable(x)
    if x.ndim < 2 or n < 1:
        raise ValueError(
            f"local_response_normalization: x {x.shape} is not (N, C, …), or n = {n} is not at "
            "least 1"
        )
    return LocalResponseNormalization(n // 2, k, alpha, beta).apply((x,))[0]


def normalize(x: Variable | Array, eps: float = 1e-5, axis: int | tuple[int, ...] = 1) -> Variable:
    """Divide vectors by their length (the root of the sum of squares) plus ``eps``; zero vectors
    stay 0.

    Args:
        x: an array or Variable; of 16 bits, it is computed in float32.
        eps: added to the length. Where ``x`` is 0 the gradient is divided by it.
        axis: the axis, or axes, along which a vector lies.

    Returns:
        ``x``'s shape and dtype.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.normalize(np.array([[3.0, 4.0], [0.0, 0.0]])).array.round(3)
        array([[0.6, 0.8],
               [0. , 0. ]])
    """
    return Normalize(eps, axis).apply((x,))[0]
