"""GELU, the Gaussian error linear unit, and the error function, of which it is made."""

from __future__ import annotations

import math

from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.activation.sigmoid import tanh
from mnpar.functions.math.exponential import exp
from mnpar.functions.node import GenericFunction, array_of, check_option, elementwise
from mnpar.kernels import erf as kernel
from mnpar.variable import Variable


@elementwise(gradient=lambda gy, x: gy * exp.generic(-(x * x)) * (2 / math.sqrt(math.pi)))
def erf(xp: ArrayModule, x: Array) -> Array:
    """Return the error function, 2 / √π ∫₀ˣ e^(−t²) dt, to 3 units of the last digit.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.erf(np.array([0.5, 10.0])).array.round(6)
        array([0.5205, 1.    ])
    """
    return kernel.erf(x)


class Gelu(GenericFunction):
    """``y = x Φ(x)``; ``gx = (Φ + x Φ′) gy``."""

    def __init__(self, by_tanh: bool) -> None:
        self.blocks = kernel.BlockedGelu(by_tanh)

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        return self.blocks.forward(x, self.differentiable)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        if isinstance(x, Variable):
            return lambda: gy * self._slope(x)
        return lambda: self.blocks.gradient(x, array_of(gy))

    def _slope(self, x: Variable) -> Variable:
        """Return Φ + x Φ′ as a function of a Variable."""
        square = x * x
        if self.blocks.by_tanh:
            phi = (tanh(x * (square * kernel.TANH[1] + kernel.TANH[0])) + 1) * 0.5
            density = phi * (1 - phi) * (square * (6 * kernel.TANH[1]) + 2 * kernel.TANH[0])
        else:
            phi = (erf(x * math.sqrt(0.5)) + 1) * 0.5
            density = exp(square * -0.5) * kernel.HEIGHT
        slope: Variable = phi + x * density
        return slope


def gelu(x: Variable | Array, approximate: str = "none") -> Variable:
    """Return ``x`` times the probability that a normal number is below it (Hendrycks and Gimpel
    2016, arXiv 1606.08415).

    Args:
        x: an array or Variable.
        approximate: ``'none'`` for x (1 + erf(x / √2)) / 2, ``'tanh'`` for x (1 + tanh(√(2 / π) (x
            + 0.044715 x³))) / 2.

    Returns:
        The shape of ``x``.

    Raises:
        ValueError: there is no such approximation.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.gelu(np.array([-1.0, 1.0])).array.round(4)
        array([-0.1587,  0.8413])
    """
    check_option("gelu", "approximate", approximate, "none", "tanh")
    return Gelu(approximate == "tanh").apply((x,))[0]
