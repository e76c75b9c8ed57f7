"""The hinge loss of classification."""

from __future__ import annotations

from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.math.average import mean as mean_of
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import GenericFunction, check_labels, check_option, show_shapes
from mnpar.variable import Variable, as_variable


class Hinge(GenericFunction):
    """max(0, 1 + sign·x) or its square."""

    def __init__(self, sign: Array, square: bool) -> None:
        self.sign, self.square = sign, square

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,) if self.square else ())
        loss = x * self.sign
        loss += 1
        loss = loss.clip(0, None, out=loss)
        if self.differentiable and not self.square:
            self.sign = self.sign * (loss > 0)
        return loss * loss if self.square else loss

    def backward(self, gy: Variable | Array) -> InputGradients:
        if not self.square:
            return lambda: gy * self.sign
        (x,) = self.get_retained_inputs()
        return lambda: gy * Hinge(self.sign, False)(x) * (self.sign * 2)


def hinge(
    x: Variable | Array, t: Variable | Array, norm: str = "L1", reduce: str = "mean"
) -> Variable:
    """The one-against-all hinge loss: Σ over classes of max(0, 1 - s x), with s = 1 for the right
    class, else -1.

    Args:
        x: scores ``(N, C)``.
        t: integer labels ``(N,)`` from 0 to C - 1.
        norm: ``'L1'``, or ``'L2'`` for the squares.
        reduce: ``'mean'`` over N of the sum over C, or ``'no'``.

    Returns:
        0-d, or ``(N, C)``.

    Raises:
        ValueError: shapes or labels of another kind, a label that is no class, an unknown option.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.hinge(np.array([[2.0, 0.5]]), np.array([0])).item()
        1.5
    """
    x = as_variable(x)
    labels = as_variable(t).array
    if x.ndim != 2 or labels.shape != x.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            "hinge: scores (N, C) and integer labels (N,), not "
            f"{show_shapes((x.shape, labels.shape))}"
        )
    check_labels("hinge", labels, x.shape[1])
    check_option("hinge", "norm", norm, "L1", "L2")
    check_option("hinge", "reduce", reduce, "mean", "no")
    sign = x.xp.ones(x.shape, x.dtype)
    sign[x.xp.arange(len(labels)), labels] = -1
    loss = Hinge(sign, norm == "L2").apply((x,))[0]
    # the whole sum would be too large for float16
    return loss if reduce == "no" else sum_of(mean_of(loss, axis=0))
