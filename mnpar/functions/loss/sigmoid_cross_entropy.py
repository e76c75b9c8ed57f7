"""Sigmoid cross entropy: the loss of binary classification.

A mean is over this rank's elements; over none it is 0. Where ranks have different numbers of
elements, their gradients must be weighted by these numbers.
"""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.activation.sigmoid import sigmoid
from mnpar.functions.array.get_item import Where
from mnpar.functions.node import GenericFunction, check_option, check_shapes
from mnpar.kernels.dtypes import floating_dtype, upcast_halves
from mnpar.kernels.logistic import log1p_exp
from mnpar.variable import Variable, as_variable


class SigmoidCrossEntropy(GenericFunction):
    """log(1 + e^(s·x)) of each element, with s = 1 - 2t, which is 0 where nothing counts; ``mean``
    is the factor of their sum.

    ``gx = s / (1 + e^(-s·x)) gy``, with all its digits for answers that are right beyond doubt,
    too. Without a mean: None.
    """

    def __init__(self, s: Array, counted: Array | None, mean: float | None) -> None:
        self.s, self.counted, self.mean = s, counted, mean

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        loss = log1p_exp(upcast_halves(self._that_counts(x)) * self.s)
        if self.counted is not None:
            loss *= self.counted
        total = loss if self.mean is None else loss.sum() * self.mean
        return backend.get_array_module(x).asarray(total, floating_dtype(x.dtype))

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        g = gy if self.mean is None else gy * self.mean
        return lambda: sigmoid.generic(self._that_counts(x) * self.s) * (self.s * g)

    def _that_counts(self, x: Variable | Array) -> Any:
        """The scores, 0 where they do not count: there they may be infinite."""
        if self.counted is None:
            return x
        return Where(self.counted)(x, backend.get_array_module(x).zeros((), x.dtype))


def sigmoid_cross_entropy(
    x: Variable | Array, t: Variable | Array, normalize: bool = True, reduce: str = "mean"
) -> Variable:
    """The binary cross entropy of labels and ``sigmoid(x)``, in nats.

    Args:
        x: scores before the sigmoid.
        t: integers of ``x``'s shape: 1 or 0, or -1, which is not counted.
        normalize: divide by the number of counted labels; False divides by the length of the first
            axis.
        reduce: ``'mean'``, or ``'no'`` for the loss of each element.

    Returns:
        0-d (0 where nothing counts) or, with ``reduce='no'``, of ``x``'s shape; of ``x``'s dtype.

    Raises:
        ValueError: the shapes differ, a label is none of -1, 0, 1, or an unknown option.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.sigmoid_cross_entropy(np.array([0.0, 1000.0]), np.array([1, 1]), reduce="no").array
        array([0.69314718, 0.        ])
    """
    check_option("sigmoid_cross_entropy", "reduce", reduce, "mean", "no")
    x = as_variable(x)
    t = as_variable(t)
    check_shapes("sigmoid_cross_entropy", x, t)
    total: Any = int  # of counts, over all ranks that have labels
    if t.layout is None:
        labels = t.array
    elif x.layout is None:
        t.layout.refuse("sigmoid_cross_entropy", "the scores are whole")
    else:
        labels, total = x.layout.labels("sigmoid_cross_entropy", t, None)
    if labels.dtype.kind not in "iub":
        raise ValueError(
            f"sigmoid_cross_entropy: the labels have dtype {labels.dtype}; they are integers: "
            "t.astype(numpy.int32) makes them "
            "so (F.bernoulli_nll(t, y) takes probabilities)"
        )
    least = labels.min() if labels.size and labels.dtype.kind == "i" else 0
    if labels.size and (labels.max() > 1 or least < -1):
        raise ValueError(
            f"sigmoid_cross_entropy: labels {labels.min()} … {labels.max()} are not all -1, 0 or 1"
        )
    counted, s = None, labels.astype(floating_dtype(x.dtype))
    s *= -2
    s += 1
    if least < 0:
        counted = labels >= 0
        s *= counted
    mean = None
    if reduce == "mean":
        count = labels.size if counted is None else int(counted.sum())
        mean = 1 / max(int(total(count)) if normalize else x.shape[0] if x.ndim else 1, 1)
    return SigmoidCrossEntropy(s, counted, mean).apply((x,))[0]
