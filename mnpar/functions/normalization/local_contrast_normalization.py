"""Local contrast normalization: each place less the mean around it, over the deviation around it.

Both means are Gaussian, over the window and all channels. The weights are products of one factor
for each axis, so the sum over channels is taken first and each axis after the other: 2k numbers for
each place instead of C·k². In blocks, the halo is that of one channel, exchanged twice.
"""

from __future__ import annotations

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.math.rounding import sign
from mnpar.functions.node import GenericFunction
from mnpar.functions.normalization.moments import cast
from mnpar.kernels.dtypes import compute_dtype, upcast_halves
from mnpar.kernels.windows import Numbers, PerAxis, numbers_per_axis
from mnpar.variable import Variable, as_variable

Weights = tuple[tuple[float, ...], ...]


class BlurWithin(GenericFunction):
    """Weighted sums along the last axes, one after the other; of windows that lie within x or,
    ``full``, that touch it.

    The weights are symmetric, so each kind is the other's adjoint.
    """

    def __init__(self, weights: Weights, full: bool = False) -> None:
        self.weights, self.full = weights, full

    def forward(self, x: Array) -> Array:
        y = upcast_halves(x)
        for axis, weights in enumerate(self.weights, x.ndim - len(self.weights)):
            y = self._along(y, axis, weights)
        return y.astype(x.dtype, copy=False)

    def _along(self, x: Array, axis: int, weights: tuple[float, ...]) -> Array:
        k = len(weights)
        xp = backend.get_array_module(x)
        longer = k - 1 if self.full else 1 - k
        y = xp.zeros((*x.shape[:axis], x.shape[axis] + longer, *x.shape[axis + 1 :]), x.dtype)
        n = min(x.shape[axis], y.shape[axis])
        for i, weight in enumerate(weights):
            some = (slice(None),) * axis + (slice(i, i + n),)
            all_ = slice(None)
            if self.full:
                y[some] += weight * x[all_]
            else:
                y += weight * x[some]
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: BlurWithin(self.weights, not self.full)(gy)


class Blur(GenericFunction):
    """Weighted sums around each place, over windows of odd lengths; beyond the edges are zeros. It
    is its own adjoint.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def forward(self, x: Array) -> Array:
        before = x.ndim - len(self.weights)
        around = [(0, 0)] * before + [(len(w) // 2, len(w) // 2) for w in self.weights]
        return BlurWithin(self.weights).forward(backend.get_array_module(x).pad(x, around))

    def backward(self, gy: Variable | Array) -> InputGradients:
        return lambda: Blur(self.weights)(gy)


def gaussian_weights(ksize: Numbers) -> Weights:
    """The factors of exp(-distance² / 2σ²), each with the sum 1, where 3σ is the distance from the
    centre to a corner.

    Example:
        >>> from mnpar.functions.normalization.local_contrast_normalization import gaussian_weights
        >>> (a, b, _), _ = gaussian_weights((3, 3))
        >>> round(b * b, 6), round(a * b, 6), round(a * a, 6)
        (0.682113, 0.071894, 0.007578)
    """
    variance = max(sum([(k // 2) ** 2 for k in ksize]), 1) / 9
    factors = [np.exp((np.arange(k) - k // 2) ** 2 / (-2 * variance)) for k in ksize]
    return tuple([tuple(map(float, factor / factor.sum())) for factor in factors])


def _ksize(who: str, ksize: PerAxis, ndim: int) -> Numbers:
    numbers = numbers_per_axis(f"{who}: ksize", ksize, ndim, 1)
    if any([k % 2 == 0 for k in numbers]):
        raise ValueError(
            f"{who}: ksize = {ksize}: a window with a place in its middle has an odd length"
        )
    return numbers


def local_contrast_normalization(x: Variable | Array, ksize: PerAxis) -> Variable:
    """Subtract from each place the mean around it, and divide by the root mean square of what is
    left around it.

    Means are weighted by a Gaussian over the window, a third of whose diagonal is its deviation,
    and taken over all channels; beyond the edges are zeros. Where everything in a window is 0,
    nothing is divided.

    Args:
        x: ``(N, C, …)`` with one or more spatial axes; of 16 bits, it is computed in float32.
        ksize: of the window, odd: a number for each axis or one for all.

    Returns:
        ``x``'s shape and dtype.

    Raises:
        ValueError: a length that is not odd.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.local_contrast_normalization(np.array([[[0.0, 0.0, 0.0, 1.0, 1.0]]]), 3).array.round(
        ...     2
        ... )
        array([[[ 0.  ,  0.  , -1.01,  1.  ,  1.01]]])

    Source:
        Jarrett, Kavukcuoglu, Ranzato and LeCun, "What is the best multi-stage architecture for
        object recognition?", ICCV 2009.
    """
    x = as_variable(x)
    n = x.ndim - 2
    if n < 1 or compute_dtype(x).kind != "f":
        raise ValueError(
            f"local_contrast_normalization: x {x.shape} {x.dtype} is not (N, C, …) of floats "
            "with spatial axes"
        )
    K = _ksize("local_contrast_normalization", ksize, n)
    weights = gaussian_weights(K)

    def blur(z: Variable) -> Variable:
        """g∗ of the sum of the channels."""
        return Blur(weights).apply((z.sum(axis=1, keepdims=True),))[0]

    # y = v / s, v = x - g∗x, s² = g∗v², and s = 1 where that is 0
    dtype, x = x.dtype, cast(x, compute_dtype(x))
    share = 1 / max(x.shape[1], 1)
    v = x - blur(x) * share
    squares = blur(v * v) * share
    # there v is 0 too: any root will do, and this has a derivative
    none = 1 - sign(squares)
    return cast(v / (squares + none) ** 0.5, dtype)
