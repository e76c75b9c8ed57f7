"""Sparse matrices in coordinate (COO) format, and their products with dense ones.

A matrix is its entries: numbers, and the row and the column of each. Each entry takes a row of the
dense matrix, times its number, to a row of the product: pick, multiply, add up. A batch of matrices
is one large one with a block for each of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.functions.array.get_item import ScatterAdd, get_item
from mnpar.functions.array.shape import cast, swapaxes
from mnpar.functions.node import array_of
from mnpar.variable import Variable, as_variable

ORDERS = ("C", "F", "other")


class CooMatrix:
    """A sparse matrix, or a batch of B of them, by its entries; :func:`to_coo` makes one of an
    array.

    Args:
        data: ``(E,)`` or ``(B, E)``, the entries: an array or, to let gradients flow on to what it
            was made of, a Variable.
        row, col: integers of the same shape, the place of each entry; -1 both: there is none.
            Entries of one place are summed.
        shape: (rows, columns), of each matrix of a batch.
        order: ``'C'``: entries are sorted by rows, ``'F'``: by columns, ``'other'``; None looks.
            Results do not depend on it.
        requires_grad: whether ``data`` gets a gradient.

    Attributes:
        data: a Variable; row, col, shape, order: as given.

    Raises:
        ValueError: what belongs together differs in shape, or an entry lies outside.

    Example:
        >>> import numpy as np, mnpar
        >>> mnpar.utils.CooMatrix(
        ...     np.array([2.0, -1.0]), np.array([0, 1]), np.array([1, 0]), (2, 3)
        ... ).to_dense()
        array([[ 0.,  2.,  0.],
               [-1.,  0.,  0.]])
    """

    def __init__(
        self,
        data: Any,
        row: Array,
        col: Array,
        shape: tuple[int, int],
        order: str | None = None,
        requires_grad: bool = False,
    ) -> None:
        if data.ndim not in (1, 2) or data.shape != row.shape or data.shape != col.shape:
            raise ValueError(
                f"CooMatrix: data {data.shape}, row {row.shape} and col {col.shape} are not "
                "all (E,) or (B, E)"
            )
        if len(shape) != 2 or min(shape) < 1 or order not in (*ORDERS, None):
            raise ValueError(
                f"CooMatrix: shape {shape} is not two lengths, or order {order!r} not 'C', "
                "'F', 'other' or None"
            )
        for name, places, length in (("row", row, shape[0]), ("col", col, shape[1])):
            if places.size and (places.max() >= length or places.min() < -1):
                raise ValueError(
                    f"CooMatrix: a {name} is outside the {length} of shape {shape}: "
                    f"{places.min()}, {places.max()}"
                )
        if ((row < 0) != (col < 0)).any():
            raise ValueError(
                "CooMatrix: an entry has no row but a column, or the reverse: both are -1 "
                "where there is no entry"
            )
        self.data = as_variable(data, requires_grad)
        self.row = row
        self.col = col
        self.shape = tuple(shape)
        self.order = get_order(row, col) if order is None else order

    def to_dense(self) -> Array:
        """The array, ``(rows, columns)`` or ``(B, rows, columns)``."""
        xp = self.data.xp
        batch = self.data.shape[:-1]
        y = xp.zeros((math.prod(batch) * self.shape[0], self.shape[1]), self.data.dtype)
        entries, rows, columns = _entries(self)
        xp.add.at(y, (rows, columns % self.shape[1]), entries.array)
        result: Array = y.reshape(*batch, *self.shape)
        return result


def to_coo(x: Array, ldnz: int | None = None, requires_grad: bool = False) -> CooMatrix:
    """The entries of an array that are not 0.

    Args:
        x: ``(rows, columns)``, or a batch of such.
        ldnz: room for so many entries at least; what is left has no place.
        requires_grad: whether the entries get a gradient.

    Raises:
        ValueError: x has other axes.

    Example:
        >>> import numpy as np, mnpar
        >>> x = mnpar.utils.to_coo(np.array([[0.0, 2.0, 0.0], [-1.0, 0.0, 0.0]]))
        >>> x.data.array, x.row, x.col, x.shape
        (array([ 2., -1.]), array([0, 1], dtype=int32), array([1, 0], dtype=int32), (2, 3))
    """
    if x.ndim not in (2, 3):
        raise ValueError(
            f"to_coo: x of shape {x.shape} must be (rows, columns) or (B, rows, columns)"
        )
    xp = backend.get_array_module(x)
    batch = x[None] if x.ndim == 2 else x
    found = [xp.nonzero(matrix) for matrix in batch]
    E = max([ldnz or 0, *[len(row) for row, _ in found]])
    data, row, col = (
        xp.full((len(batch), E), fill, dtype)
        for fill, dtype in ((0, x.dtype), (-1, "i4"), (-1, "i4"))
    )
    for b, (r, c) in enumerate(found):
        data[b, : len(r)], row[b, : len(r)], col[b, : len(r)] = batch[b][r, c], r, c
    shape = (*x.shape[:-2], E)
    return CooMatrix(
        data.reshape(shape),
        row.reshape(shape),
        col.reshape(shape),
        x.shape[-2:],
        requires_grad=requires_grad,
    )


def get_order(row: Array, col: Array) -> str:
    """Return whether entries are sorted by rows and within them by columns (``'C'``), the reverse
    (``'F'``), or neither (``'other'``).

    Example:
        >>> import numpy as np, mnpar
        >>> mnpar.utils.get_order(np.array([0, 1, 1]), np.array([2, 0, 1]))
        'C'
    """
    for order, first, second in (("C", row, col), ("F", col, row)):
        there = (first[..., 1:] >= 0) & (first[..., :-1] >= 0)
        step = first[..., 1:] - first[..., :-1]
        back = (step < 0) | ((step == 0) & (second[..., 1:] < second[..., :-1]))
        if not (back & there).any():
            return order
    return "other"


def _entries(a: CooMatrix) -> tuple[Variable, Array, Array]:
    """The entries of a batch in one list, and their rows and columns in one large matrix of which
    theirs are blocks.
    """
    xp = a.data.xp
    number = a.data.shape[0] if a.data.ndim == 2 else 1
    block = xp.arange(number)[:, None]
    row = a.row.reshape(number, a.row.shape[-1])
    col = a.col.reshape(number, a.col.shape[-1])
    rows = (row + block * a.shape[0]).reshape(-1)
    columns = (col + block * a.shape[1]).reshape(-1)
    data = a.data.reshape((-1,))
    there = xp.nonzero(row.reshape(-1) >= 0)[0]
    if len(there) == len(rows):
        return data, rows, columns
    return get_item(data, there), rows[there], columns[there]


def _product(a: CooMatrix, b: Variable) -> Variable:
    """Sparse times dense (…, K, N)."""
    batch, (M, K), N = a.data.shape[:-1], a.shape, b.shape[-1]
    data, rows, columns = _entries(a)
    dtype = np.result_type(data.dtype, b.dtype)
    wide = np.promote_types(dtype, np.float32)
    size = math.prod(batch)
    # (E, N)
    given = cast(data, wide).reshape((-1, 1)) * cast(
        get_item(b.reshape((size * K, N)), columns), wide
    )
    y: Variable = ScatterAdd(rows, (size * M, N))(given).reshape((*batch, M, N))
    return cast(y, dtype)


def _transposed(a: CooMatrix) -> CooMatrix:
    order = {"C": "F", "F": "C"}.get(a.order, a.order)
    return CooMatrix(a.data, a.col, a.row, (a.shape[1], a.shape[0]), order)


def sparse_matmul(
    a: Variable | Array, b: Variable | Array, transa: bool = False, transb: bool = False
) -> Variable:
    """The product of a sparse matrix and a dense one, or of a dense one and a sparse one, or of
    batches of them.

    Memory is taken for as many rows of the dense matrix as the sparse one has entries.

    Args:
        a, b: one is a :class:`mnpar.utils.CooMatrix`, the other an array or Variable ``(M, K)`` or
            ``(K, N)``; both or none have a batch axis before these.
        transa, transb: exchange the rows and columns of ``a``, ``b`` first.

    Returns:
        ``(M, N)`` or ``(B, M, N)``, dense. Gradients flow to the entries and to the dense matrix.

    Raises:
        ValueError: none of them is sparse, or both are; shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F
        >>> a = mnpar.utils.to_coo(np.array([[0.0, 2.0], [0.0, 0.0], [3.0, 0.0]]))
        >>> F.sparse_matmul(a, np.array([[1.0, 10.0], [2.0, 20.0]])).array
        array([[ 4., 40.],
               [ 0.,  0.],
               [ 3., 30.]])
    """
    if isinstance(a, CooMatrix) == isinstance(b, CooMatrix):
        kinds = f"{type(a).__name__} and {type(b).__name__}"
        raise ValueError(
            "sparse_matmul: one of the two is a CooMatrix (mnpar.utils.to_coo makes one), not "
            f"{kinds}"
        )
    if not isinstance(a, CooMatrix):  # a b = (bᵀ aᵀ)ᵀ
        return swapaxes(sparse_matmul(b, a, not transb, not transa), -1, -2)
    x = as_variable(b)
    sparse = _transposed(a) if transa else a
    if x.ndim >= 2 and transb:
        x = swapaxes(x, -1, -2)
    if (
        x.ndim != sparse.data.ndim + 1
        or x.shape[:-2] != sparse.data.shape[:-1]
        or x.shape[-2] != sparse.shape[1]
    ):
        shapes = f"{(*sparse.data.shape[:-1], *sparse.shape)} and {array_of(x).shape}"
        raise ValueError(
            f"sparse_matmul: shapes {shapes} (as they are multiplied) do not belong together"
        )
    return _product(sparse, x)
