"""Inverses, determinants and Cholesky factors of matrices and of batches of them; products and
lengths over a batch, under Chainer's names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import InputGradients
from mnpar.functions.array.shape import reshape
from mnpar.functions.math.matmul import matmul
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import GenericFunction, show_shapes
from mnpar.kernels.dtypes import floating_dtype, upcast_halves
from mnpar.variable import Variable, as_variable


class Inv(GenericFunction):
    """X⁻¹ of a batch (N, D, D); its derivative is -X⁻¹ dX X⁻¹."""

    def forward(self, x: Array) -> Array:
        self.retain_outputs((0,))
        try:
            y: Array = backend.get_array_module(x).linalg.inv(upcast_halves(x))
            return y.astype(floating_dtype(x.dtype), copy=False)
        except np.linalg.LinAlgError:
            flat = np.linalg.matrix_rank(upcast_halves(x)) < x.shape[-1]
            where = f": number {int(flat.argmax())} of {len(x)}" if len(x) > 1 else ""
            raise ValueError(
                f"a singular matrix has no inverse, and its determinant here no gradient{where}"
            ) from None

    def backward(self, gy: Variable | Array) -> InputGradients:
        (y,) = self.get_retained_outputs()
        turned = y.transpose((0, 2, 1))
        return lambda: turned @ -gy @ turned


def batch_inv(a: Variable | Array) -> Variable:
    """The inverse of each matrix of a batch.

    Args:
        a: ``(N, D, D)``.

    Returns:
        ``(N, D, D)``.

    Raises:
        ValueError: not square, or one of them is singular (CuPy does not look).

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.batch_inv(np.array([[[2.0]], [[4.0]]])).array.ravel()
        array([0.5 , 0.25])
    """
    return Inv().apply((_square("batch_inv", a, "(N, D, D)"),))[0]


def inv(a: Variable | Array) -> Variable:
    """The inverse of a matrix.

    Args:
        a: ``(D, D)``.

    Returns:
        ``(D, D)``.

    Raises:
        ValueError: not square, or singular (CuPy does not look).

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.inv(np.array([[2.0, 0.0], [0.0, 4.0]])).array
        array([[0.5 , 0.  ],
               [0.  , 0.25]])
    """
    a = _square("inv", a, "(D, D)")
    return reshape(batch_inv(reshape(a, (1, *a.shape))), a.shape)


class Det(GenericFunction):
    """|X| of a batch (N, D, D); its derivative is |X| X⁻ᵀ."""

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        y: Array = backend.get_array_module(x).linalg.det(upcast_halves(x))
        return y.astype(floating_dtype(x.dtype), copy=False)

    def backward(self, gy: Variable | Array) -> InputGradients:
        ((x,), (y,)) = self.get_retained_inputs(), self.get_retained_outputs()
        return lambda: (gy * y).reshape((x.shape[0], 1, 1)) * Inv()(x).transpose((0, 2, 1))


def batch_det(a: Variable | Array) -> Variable:
    """The determinant of each matrix of a batch; where one is 0, backward raises ValueError.

    Args:
        a: ``(N, D, D)``.

    Returns:
        ``(N,)``.

    Raises:
        ValueError: not square.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.batch_det(np.array([[[2.0]], [[4.0]]])).array
        array([2., 4.])
    """
    return Det().apply((_square("batch_det", a, "(N, D, D)"),))[0]


def det(a: Variable | Array) -> Variable:
    """The determinant of a matrix; where it is 0, backward raises ValueError.

    Args:
        a: ``(D, D)``.

    Returns:
        0-d.

    Raises:
        ValueError: not square.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> round(F.det(np.array([[2.0, 1.0], [0.0, 4.0]])).item(), 12)
        8.0
    """
    a = _square("det", a, "(D, D)")
    return reshape(batch_det(reshape(a, (1, *a.shape))), ())


class Cholesky(GenericFunction):
    """L of a matrix L Lᵀ; dL = L Φ(L⁻¹ dA L⁻ᵀ), where Φ keeps what is below the diagonal, and half
    of that.
    """

    def forward(self, a: Array) -> Array:
        self.retain_outputs((0,))
        xp = backend.get_array_module(a)
        try:
            result: Array = xp.linalg.cholesky(upcast_halves(a)).astype(a.dtype, copy=False)
            return result
        except np.linalg.LinAlgError:
            what = f"cholesky: a matrix of x, of shape {a.shape}, is not positive definite"
            raise ValueError(
                f"{what}: add a small multiple of the identity, if it should be"
            ) from None

    def backward(self, gL: Variable | Array) -> InputGradients:
        (L,) = self.get_retained_outputs()

        def ga() -> Any:
            xp = backend.get_array_module(gL)
            n = L.shape[0]
            kept = (xp.tri(n) - xp.eye(n) / 2).astype(L.dtype)
            inverse = Inv()(L.reshape((1, n, n))).reshape((n, n))
            g = inverse.transpose() @ ((L.transpose() @ gL) * kept) @ inverse
            return (g + g.transpose()) * 0.5

        return ga


def cholesky(a: Variable | Array) -> Variable:
    """The lower triangular matrix L with L Lᵀ = a.

    Args:
        a: ``(D, D)``, symmetric and positive definite; only its lower triangle is read, and each
            half of it gets half of the gradient.

    Returns:
        ``(D, D)``.

    Raises:
        ValueError: it is not so.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.cholesky(np.array([[4.0, 2.0], [2.0, 2.0]])).array
        array([[2., 0.],
               [1., 1.]])
    """
    return Cholesky().apply((_square("cholesky", a, "(D, D)"),))[0]


def batch_matmul(
    a: Variable | Array, b: Variable | Array, transa: bool = False, transb: bool = False
) -> Variable:
    """A product of matrices for each sample. Chainer's older form of :func:`matmul`, with vectors
    as columns.

    Args:
        a, b: ``(N, M, K)`` and ``(N, K, L)``; ``(N, K)`` is a batch of columns ``(N, K, 1)``.
        transa, transb: exchange the last two axes of ``a``, ``b`` first.

    Returns:
        ``(N, M, L)``.

    Raises:
        ValueError: the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.batch_matmul(np.ones((5, 3)), np.ones((5, 3)), transa=True).shape
        (5, 1, 1)
    """
    a = as_variable(a)
    b = as_variable(b)
    if a.ndim not in (2, 3) or b.ndim not in (2, 3) or len(a) != len(b):
        raise ValueError(
            f"batch_matmul: shapes {show_shapes((a.shape, b.shape))} are not (N, M, K) and (N, K, "
            "L), or (N, K)"
        )
    a, b = [x if x.ndim == 3 else reshape(x, (*x.shape, 1)) for x in (a, b)]
    return matmul(a, b, transa, transb)


def batch_l2_norm_squared(x: Variable | Array) -> Variable:
    """The sum of squares of each sample.

    Args:
        x: ``(N, …)``.

    Returns:
        ``(N,)``.

    Raises:
        ValueError: x has no axes.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.batch_l2_norm_squared(np.array([[3.0, 4.0]])).array
        array([25.])
    """
    x = as_variable(x)
    if x.ndim < 1:
        raise ValueError("batch_l2_norm_squared: x has shape (); its first axis is the batch")
    return sum_of(x * x, axis=tuple(range(1, x.ndim)))


def _square(name: str, x: Variable | Array, form: str) -> Variable:
    a = as_variable(x)
    if a.ndim != len(form.split(",")) or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"{name}: a of shape {a.shape} is not {form}")
    return a
