"""Einstein summation: sums of products over named axes, whose derivatives are such sums, too.

The gradient of an operand is the product of the other operands with the output's gradient, summed
over the axes that the operand does not have: an einsum with the operand and the output exchanged.
For that each axis of an operand must occur in another operand or in the output, and only once in
each operand: other axes are summed first, of repeated ones the diagonal is taken, and axes of
length 1 that broadcast are dropped.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.shape import moveaxis, reshape
from mnpar.functions.math.matmul import matmul
from mnpar.functions.math.reduction import sum as sum_of
from mnpar.functions.node import GenericFunction, normalize_axes, show_shapes
from mnpar.kernels.dtypes import upcast_halves
from mnpar.variable import Variable, as_variable


class Einsum(GenericFunction):
    """A sum of products in which no operand has an axis twice or alone."""

    multilinear = True

    def __init__(self, operands: tuple[str, ...], output: str) -> None:
        self.operands, self.output = operands, output

    def forward(self, *xs: Array) -> Array:
        self.retain_inputs(tuple(range(len(xs))))
        xp = backend.get_array_module(*xs)
        widened = [upcast_halves(x) for x in xs]
        y = self._matrix_product(xp, *widened) if len(xs) == 2 else None
        if y is None:
            spec = f"{','.join(self.operands)}->{self.output}"
            order: Any = len(xs) > 2
            if len(xs) == 2 and not set("".join(self.operands)) <= set(self.output):
                # (of two there is nothing to search for, and nothing to do if no axis is summed)
                order = ["einsum_path", (0, 1)]
            y = xp.einsum(spec, *widened, optimize=order)
            if not all([x.size for x in xs]):
                y = xp.zeros_like(
                    y
                    # numpy's may be 0 · x with an x that is not there: NaN, if that is what the
                    # memory has
                )
        return y.astype(xp.result_type(*xs), copy=len(xs) == 1)  # of one operand it may be a view

    def _matrix_product(self, xp: ArrayModule, a: Array, b: Array) -> Array | None:
        """The sum as one product of matrices, for which numpy's einsum needs time to find out; None
        if it is none.
        """
        first, second, output = *self.operands, self.output
        shared = [name for name in first if name in second]
        if not shared or any([name in output for name in shared]):
            return None
        if not output and first != second:
            return None  # a matrix of one element, for which an operand would be transposed
        if output and output[0] in second:
            first, second, a, b = second, first, b, a
        y = xp.tensordot(
            a, b, ([first.index(name) for name in shared], [second.index(name) for name in shared])
        )
        found = [name for name in first + second if name not in shared]
        return (
            xp.asarray(y)
            if found == list(output)
            else y.transpose([found.index(name) for name in output])
        )

    def backward(self, gy: Variable | Array) -> InputGradients:
        xs = self.get_retained_inputs()

        def gradient(i: int) -> Any:
            others = [j for j in range(len(xs)) if j != i]
            names = (self.output, *[self.operands[j] for j in others])
            return Einsum(names, self.operands[i])(gy, *[xs[j] for j in others])

        return tuple([lambda i=i: gradient(i) for i in range(len(xs))])


def einsum(*operands: Any) -> Variable:
    """The sum of products that a formula names, as numpy has it.

    Args:
        operands: the formula, ``'ij,jk->ik'`` for a product of matrices, and the arrays or
            Variables. ``...`` stands for axes without names; without ``->`` the result has, in
            alphabetical order, the axes that occur once.

    Returns:
        A Variable with the axes after ``->``.

    Raises:
        ValueError: the formula and the shapes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.einsum("ij,j->i", np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0])).array
        array([21., 43.])
    """
    formula, *rest = operands
    xs = [as_variable(x) for x in rest]
    names, output = _parse(formula, xs)
    lengths: dict[str, int] = {}
    for axes, x in zip(names, xs, strict=True):
        for name, length in zip(axes, x.shape, strict=True):
            if lengths.setdefault(name, length) != length:
                if 1 not in (length, lengths[name]):
                    raise ValueError(
                        f"einsum {formula!r}: axes of one name have lengths {length} and "
                        f"{lengths[name]}"
                    )
                lengths[name] = length if lengths[name] == 1 else lengths[name]
    for i, x in enumerate(xs):
        names[i], xs[i] = _without_short(formula, names[i], x, lengths)
    for i, x in enumerate(xs):
        elsewhere = set(output).union(*[set(names[j]) for j in range(len(xs)) if j != i])
        names[i], xs[i] = _clean(names[i], x, elsewhere)
    return Einsum(tuple(names), output).apply(tuple(xs))[0]


def tensordot(
    a: Variable | Array,
    b: Variable | Array,
    axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2,
) -> Variable:
    """The product of two arrays, summed over axes of both.

    Args:
        a, b: arrays or Variables.
        axes: how many: the last of ``a`` and the first of ``b``; or a pair, the axes of ``a`` and
            those of ``b``.

    Returns:
        The other axes of ``a``, then those of ``b``.

    Raises:
        ValueError: the axes do not belong together.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5))).array[0]
        array([12., 12., 12., 12., 12.])
    """
    a = as_variable(a)
    b = as_variable(b)
    if isinstance(axes, tuple | list):
        left, right = axes
    elif axes < 0:
        raise ValueError(f"tensordot: axes = {axes}: how many are summed over is 0 or more")
    else:
        left = range(a.ndim - axes, a.ndim)
        right = range(axes)
    left = normalize_axes("tensordot", a, left)
    right = normalize_axes("tensordot", b, right)
    if len(left) != len(right) or [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise ValueError(
            f"tensordot: shapes {show_shapes((a.shape, b.shape))} cannot be summed over axes "
            f"{left} and {right}"
        )
    first = string.ascii_letters[: a.ndim]
    second = list(string.ascii_letters[a.ndim : a.ndim + b.ndim])
    for i, j in zip(left, right, strict=True):
        second[j] = first[i]
    output = [x for i, x in enumerate(first) if i not in left] + [
        x for i, x in enumerate(second) if i not in right
    ]
    return Einsum((first, "".join(second)), "".join(output)).apply((a, b))[0]


def _parse(formula: str, xs: list[Variable]) -> tuple[list[str], str]:
    """Names of the axes of each operand and of the output, with names for those that ``...`` stands
    for.
    """
    left, arrow, output = formula.replace(" ", "").partition("->")
    names = left.split(",")
    if len(names) != len(xs):
        raise ValueError(
            f"einsum {formula!r} is a formula for {len(names)} operands, not {len(xs)}"
        )
    free = [letter for letter in string.ascii_letters if letter not in formula]
    extra = [x.ndim - len(axes.replace("...", "")) for axes, x in zip(names, xs, strict=True)]
    for i, (axes, more) in enumerate(zip(names, extra, strict=True)):
        if more < 0 or (more and "..." not in axes):
            raise ValueError(
                f"einsum {formula!r}: operand {i} has shape {xs[i].shape}, but the formula "
                f"names {axes!r}"
            )
    spread = "".join(free[: max(extra, default=0)])
    names = [
        axes.replace("...", spread[len(spread) - more :])
        for axes, more in zip(names, extra, strict=True)
    ]
    if not arrow:
        every = "".join(names)
        output = spread + "".join(
            sorted({name for name in every if every.count(name) == 1} - set(spread))
        )
    output = output.replace("...", spread)
    if len(set(output)) < len(output) or not set(output) <= set("".join(names)):
        raise ValueError(
            f"einsum {formula!r}: the axes after -> are some of those before it, each once"
        )
    return names, output


def _without_short(
    formula: str, axes: str, x: Variable, lengths: dict[str, int]
) -> tuple[str, Variable]:
    """An operand without axes of length 1 that stand for longer ones."""
    short = "".join([name for name, n in zip(axes, x.shape, strict=True) if n != lengths[name]])
    if not short:
        return axes, x
    if any(short.count(name) != axes.count(name) for name in short):
        raise ValueError(
            f"einsum {formula!r}: axes of one name in one operand have lengths {x.shape}"
        )
    axes = "".join([name for name in axes if name not in short])
    return axes, reshape(x, tuple([lengths[name] for name in axes]))


def _clean(axes: str, x: Variable, elsewhere: set[str]) -> tuple[str, Variable]:
    """An operand without repeated axes and axes that occur nowhere else."""
    for name in dict.fromkeys(axes):
        while axes.count(name) > 1:
            i = axes.index(name)
            j = axes.index(name, i + 1)
            every = x.xp.arange(x.shape[i])
            x = get_item(moveaxis(x, (i, j), (0, 1)), (every, every))
            axes = name + axes[:i] + axes[i + 1 : j] + axes[j + 1 :]
    for name in axes:
        i = axes.index(name)
        if name not in elsewhere:
            x = sum_of(x, axis=i)
            axes = axes[:i] + axes[i + 1 :]
    return axes, x


def bilinear(
    e1: Variable | Array,
    e2: Variable | Array,
    W: Variable | Array,
    V1: Variable | Array | None = None,
    V2: Variable | Array | None = None,
    b: Variable | Array | None = None,
) -> Variable:
    """The bilinear product of two inputs: y_l = Σ_jk e1_j e2_k W_jkl, plus e1 V1 + e2 V2 + b if
    these are given.

    Args:
        e1, e2: ``(N, J)`` and ``(N, K)``; axes after the second are flattened into it.
        W: ``(J, K, L)``.
        V1, V2, b: ``(J, L)``, ``(K, L)`` and ``(L,)``: all three or none.

    Returns:
        ``(N, L)``.

    Raises:
        ValueError: the shapes do not belong together, or only some of V1, V2 and b are given.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.bilinear(np.ones((1, 2)), np.ones((1, 3)), np.ones((2, 3, 1))).array
        array([[6.]])

    Source:
        Socher et al., "Reasoning with neural tensor networks for knowledge base completion", NIPS
        2013.
    """
    e1, e2 = [
        reshape(e, (len(e), -1)) if e.ndim > 2 else e for e in (as_variable(e1), as_variable(e2))
    ]
    if (
        e1.ndim != 2
        or e2.ndim != 2
        or W.ndim != 3
        or W.shape[:2] != (e1.shape[1], e2.shape[1])
        or len(e1) != len(e2)
    ):
        raise ValueError(
            f"bilinear: shapes {show_shapes((e1.shape, e2.shape, W.shape))} are not (N, J), (N, K) "
            "and (J, K, L)"
        )
    if not (V1 is None) == (V2 is None) == (b is None):
        raise ValueError("bilinear: V1, V2 and b are given together or not at all")
    J, K, L = W.shape
    pairs = reshape(matmul(e1, reshape(W, (J, K * L))), (len(e1), K, L))
    y = reshape(matmul(reshape(e2, (len(e2), 1, K)), pairs), (len(e1), L))
    if V1 is None or V2 is None or b is None:
        return y
    if V1.shape != (J, L) or V2.shape != (K, L) or b.shape != (L,):
        raise ValueError(
            f"bilinear: shapes {show_shapes((V1.shape, V2.shape, b.shape))} are not {(J, L)}, "
            f"{(K, L)} and {(L,)}"
        )
    return y + matmul(e1, V1) + matmul(e2, V2) + b
