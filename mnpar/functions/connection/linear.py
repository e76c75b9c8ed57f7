"""A linear layer, x Wᵀ + b, as one function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.autograd.arraylike import as_array
from mnpar.autograd.graph import Gradient
from mnpar.backend import HALVES, Array
from mnpar.function_node import FunctionNode, InputGradients
from mnpar.functions.array.shape import reshape
from mnpar.functions.math.matmul import gradient_by_rows, multiply_by_rows
from mnpar.functions.node import GenericFunction, array_of
from mnpar.kernels.blas import product
from mnpar.kernels.sums import ones, sum_over
from mnpar.variable import Variable, as_variable


class Linear(GenericFunction):
    """y = x Wᵀ + b for x (N, D), W (O, D), b (O,)."""

    multilinear = True
    summands = slice(2, None)

    def __init__(self, n_batch_axes: int = 1) -> None:
        self.n_batch_axes = n_batch_axes  # of a divided x; all other x have one

    def forward(self, x: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        y = multiply_by_rows(x, W)
        if b is None:
            return y
        if y.dtype != b.dtype:
            return y + b
        y += b
        return y

    def backward(self, gy: Variable | Array) -> InputGradients:
        x, W = self.get_retained_inputs()
        gx, gW = (
            lambda: gradient_by_rows(gy, W, x),  # (N, O) · (O, D)
            # (O, N) · (N, D)
            lambda: product(
                gy.transpose(), x, self.gradient_out(1, gy) if gy.dtype == x.dtype else None
            ),
        )
        return (gx, gW, lambda: self._rows_added(gy)) if len(self.inputs) == 3 else (gx, gW)

    def _rows_added(self, gy: Variable | Array) -> Any:
        """The gradient of b, right where that is kept."""
        out = self.gradient_out(2, gy)
        if type(gy) is np.ndarray and gy.dtype.char in "fd":
            # BLAS: a third of the time, and it minds no order of elements
            return ones(len(gy), gy.dtype).dot(gy, out)
        if out is None or isinstance(gy, Variable) or gy.dtype.char in HALVES:
            return sum_over(gy, 0)
        return gy.sum(axis=0, out=out)

    def join_key(self) -> tuple[object, ...]:
        """Functions with the same W and b can share one product."""
        x, *weights = self.inputs
        return (x.dtype, *map(id, weights))

    def join(
        self, others: Sequence[Any], gys: Sequence[Gradient | None]
    ) -> tuple[FunctionNode, list[Gradient | None]]:
        """Return one function with the rows of all: the gradients of W and b are then one product
        and one sum.
        """
        arrays = [as_array(gy) for gy in gys]
        xp = backend.get_array_module(*arrays)
        x, W = self._kept_inputs
        whole = Linear()
        whole.inputs = self.inputs
        whole._kept_input_indexes = (0, 1)
        whole._kept_inputs = xp.concatenate([x, *[one._kept_inputs[0] for one in others]]), W
        return whole, [xp.concatenate(arrays)]


def features_error(who: str, shape: tuple[int, ...], n_batch_axes: int) -> str:
    """The error of an x without batch axes, or without axes after them."""
    if len(shape) == n_batch_axes == 1:
        return (
            f"{who}: x of shape {shape} must have 2 axes or more, (N, …): x[None] is a batch "
            "of one example, and x[:, None] "
            f"one of {shape[0]} numbers"
        )
    return (
        f"{who}: x of shape {shape} has no features after n_batch_axes = {n_batch_axes} axes, "
        "or no batch"
    )


def linear(
    x: Variable | Array,
    W: Variable | Array,
    b: Variable | Array | None = None,
    n_batch_axes: int = 1,
) -> Variable:
    """``x Wᵀ + b`` for each sample; all axes after the batch's are one axis of features.

    Args:
        x: ``(N, …)`` with D features per sample.
        W: ``(O, D)``.
        b: ``(O,)``, or None.
        n_batch_axes: how many axes of ``x`` come before the features.

    Returns:
        ``(N, O)``; with more batch axes, these and O.

    Raises:
        ValueError: the sizes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.linear(np.ones((2, 3)), np.ones((4, 3)), np.ones(4)).array
        array([[4., 4., 4., 4.],
               [4., 4., 4., 4.]])
    """
    x = x if isinstance(x, Variable) else as_variable(x)
    W = W if isinstance(W, Variable) else as_variable(W)
    w, bias = W.array, None if b is None else array_of(b)
    # a parameter says itself that it has no array yet
    shape, weights = (
        x.shape,
        (W if w is None else w).shape,
    )
    if not 0 < n_batch_axes < len(shape):
        raise ValueError(features_error("linear", shape, n_batch_axes))
    D = math.prod(shape[n_batch_axes:])
    if len(weights) != 2 or weights[1] != D:
        raise ValueError(
            f"linear: x of shape {shape} has {D} features after {n_batch_axes} batch axes, but "
            f"W of shape {weights} is not "
            f"(outputs, {D}): give W that shape, or reshape x"
        )
    if b is not None and (b if bias is None else bias).shape != weights[:1]:
        raise ValueError(
            f"linear: b of shape {b.shape} must have shape {weights[:1]}, one for each row "
            f"of W {weights}"
        )
    if len(shape) > 2 and x.layout is None:
        x = reshape(x, (math.prod(shape[:n_batch_axes]), D))  # (N, …) → (N, D)
    y = Linear(n_batch_axes).apply((x, W) if b is None else (x, W, b))[0]
    return y if n_batch_axes == 1 else reshape(y, (*shape[:n_batch_axes], y.shape[-1]))
