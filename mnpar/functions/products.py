"""Products of matrices: ``matmul`` and the fused ``linear``, each with one BLAS call per
product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import HALVES, Array
from mnpar.blas import FEW, by_mkl, product
from mnpar.function_node import FunctionNode
from mnpar.functions.broadcasting import fit
from mnpar.functions.generic import listed, matrix_transpose
from mnpar.functions.rows import ones, sum_over
from mnpar.functions.shape import reshape, swapaxes
from mnpar.variable import Variable, as_variable


class MatMul(FunctionNode):
    """Stacks of matrices; the axes before the last two are broadcast."""

    generic = True

    def forward(self, x: Array, y: Array) -> Array:
        self.retain_inputs((0, 1))
        return product(x, y)

    def backward(self, gz: Any) -> Any:
        x, y = self.get_retained_inputs()
        return lambda: fit(product(gz, matrix_transpose(y)), x.shape), lambda: self._right(x, y, gz)

    @staticmethod
    def _right(x: Any, y: Any, gz: Any) -> Any:
        if y.ndim == 2 < x.ndim:  # one large product instead of a sum of small ones
            rows = math.prod(x.shape[:-1])
            # (…, K) → (rows, K)
            x, gz = (
                x.reshape((rows, x.shape[-1])),
                gz.reshape((rows, gz.shape[-1])),
            )
        return fit(product(matrix_transpose(x), gz), y.shape)


def _by_rows(x: Array, W: Array) -> Array:
    """x Wᵀ: (N, D) · (D, O).

    OpenBLAS turns W round for that; with few rows it is 1.1 to 1.8 times as fast in float32 to
    compute W xᵀ, of which the result is the transpose: its columns lie together, and those of what
    is computed from it element by element.
    """
    size = x.size * len(W)
    if size <= FEW:
        return x.dot(W.T)
    if by_mkl(x, size):
        return product(x, W.T)
    if 1 < len(x) <= min(128, len(W) - 1) and x.dtype.char == "f" and W.dtype.char == "f":
        return (W @ x.T).T
    return x @ W.T


def _back_by_rows(gy: Any, W: Any, x: Any) -> Any:
    """gy W: (N, O) · (O, D), its elements in the order in which x has them: it will be multiplied
    with what x was made of.
    """
    if type(gy) is np.ndarray and type(x) is np.ndarray and not x.flags.c_contiguous:
        return product(W.T, gy.T).T
    return product(gy, W)


class Linear(FunctionNode):
    """y = x Wᵀ + b for x (N, D), W (O, D), b (O,)."""

    generic = True

    def forward(self, x: Array, W: Array, b: Array | None = None) -> Array:
        self.retain_inputs((0, 1))
        y = _by_rows(x, W)
        if b is None:
            return y
        if y.dtype != b.dtype:
            return y + b
        y += b
        return y

    def backward(self, gy: Any) -> Any:
        x, W = self.get_retained_inputs()
        gx, gW = (
            lambda: _back_by_rows(gy, W, x),  # (N, O) · (O, D)
            # (O, N) · (N, D)
            lambda: product(
                gy.transpose(), x, self.gradient_out(1, gy) if gy.dtype == x.dtype else None
            ),
        )
        return (gx, gW, lambda: self._rows_added(gy)) if len(self.inputs) == 3 else (gx, gW)

    def _rows_added(self, gy: Any) -> Any:
        """The gradient of b, right where that is kept."""
        out = self.gradient_out(2, gy)
        if type(gy) is np.ndarray and gy.dtype.char in "fd":
            # BLAS: a third of the time, and it minds no order of elements
            return ones(len(gy), gy.dtype).dot(gy, out)
        return (
            sum_over(gy, 0) if out is None or gy.dtype.char in HALVES else gy.sum(axis=0, out=out)
        )

    @staticmethod
    def joined(functions: Sequence[Any], gys: Sequence[Array]) -> tuple[Linear, Array]:
        """For several of this class with the same W and b, that ran: one in their place with all
        their rows, and its gy.

        The gradients of W and b are then one product and one sum, not as many as there are
        functions.
        """
        xp = backend.get_array_module(gys[0])
        whole, (_, W) = Linear(), functions[0]._kept_inputs
        whole.inputs = functions[0].inputs
        whole._kept_input_indexes = (0, 1)
        whole._kept_inputs = xp.concatenate([function._kept_inputs[0] for function in functions]), W
        return whole, xp.concatenate(gys)


def matmul(a: Any, b: Any, transa: bool = False, transb: bool = False) -> Variable:
    """The product of two matrices, of stacks of them, or of vectors with them, as ``a @ b`` has it.

    Args:
        a: ``(…, M, K)``, or a vector ``(K,)``.
        b: ``(…, K, N)``, or a vector ``(K,)``.
        transa, transb: exchange the last two axes of ``a``, ``b`` first; vectors stay as they are.

    Returns:
        ``(…, M, N)``, with the leading axes broadcast; vectors leave no axis behind.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.matmul(np.ones((2, 3)), np.ones((4, 3)), transb=True).shape
        (2, 4)
    """
    a = as_variable(a)
    b = as_variable(b)
    shapes = a.shape, b.shape
    left = a.ndim == 1
    right = b.ndim == 1
    if left and b.ndim:
        a = reshape(a, (1, *a.shape))  # (K,) → (1, K)
    elif transa and a.ndim > 1:
        a = swapaxes(a, -1, -2)
    if right and a.ndim:
        b = reshape(b, (*b.shape, 1))  # (K,) → (K, 1)
    elif transb and b.ndim > 1:
        b = swapaxes(b, -1, -2)
    try:
        y = MatMul().apply((a, b))[0]
    except ValueError:
        turned = " (transposed as asked)" if transa or transb else ""
        raise ValueError(
            f"matmul: shapes {listed(shapes)}{turned} do not belong together: the last axis of "
            "the first must be as long as "
            "the last but one of the second, and the axes before them must broadcast; transa "
            "and transb exchange two axes"
        ) from None
    if not (left or right):
        return y
    end = y.ndim - 2
    return reshape(
        y, y.shape[:end] + (() if left else (y.shape[end],)) + (() if right else (y.shape[-1],))
    )


def no_features(who: str, shape: tuple[int, ...], n_batch_axes: int) -> str:
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


def linear(x: Any, W: Any, b: Any = None, n_batch_axes: int = 1) -> Variable:
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
    w, bias = W.array, getattr(b, "array", b)
    # a parameter says itself that it has no array yet
    shape, weights = (
        x.array.shape,
        (W if w is None else w).shape,
    )
    if not 0 < n_batch_axes < len(shape):
        raise ValueError(no_features("linear", shape, n_batch_axes))
    D = math.prod(shape[n_batch_axes:])
    if len(weights) != 2 or weights[1] != D:
        raise ValueError(
            f"linear: x of shape {shape} has {D} features after {n_batch_axes} batch axes, but "
            f"W of shape {weights} is not "
            f"(outputs, {D}): give W that shape, or reshape x"
        )
    if b is not None and (b if bias is None else bias).shape != weights[:1]:
        raise ValueError(
            f"linear: b of shape {bias.shape} must have shape {weights[:1]}, one for each row "
            f"of W {weights}"
        )
    if len(shape) > 2:
        x = reshape(x, (math.prod(shape[:n_batch_axes]), D))  # (N, …) → (N, D)
    y = Linear().apply((x, W) if b is None else (x, W, b))[0]
    return y if n_batch_axes == 1 else reshape(y, (*shape[:n_batch_axes], weights[0]))
