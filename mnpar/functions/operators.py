"""The operators and methods of Variable: a table that puts functions under Python's names for them.

They take what numpy's own methods take, so that a generic backward reads the same for arrays and
Variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_node import FunctionNode
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.shape import cast, reshape, transpose
from mnpar.functions.math.arithmetic import (
    Add,
    AddConstant,
    Div,
    Mul,
    MulConstant,
    Neg,
    Pow,
    PowConstant,
    Sub,
    absolute,
    broadcast_error,
    floor_divide,
)
from mnpar.functions.math.average import average
from mnpar.functions.math.complex_parts import conj, imag, real
from mnpar.functions.math.matmul import matmul
from mnpar.functions.math.reduction import max, min, sum
from mnpar.functions.node import as_operand
from mnpar.hints import explain_keywords
from mnpar.variable import Variable

Method = Callable[[Variable, Any], Any]
_NUMBERS = (float, int)


def _binary(
    symbol: str, node: type[FunctionNode], number: Callable[[Any], FunctionNode] | None = None
) -> Method:
    """``x ∘ other``; ``number`` makes the node for a plain number beside floats."""

    def method(x: Variable, other: Any) -> Any:
        try:
            if not isinstance(other, Variable):
                if number is not None and type(other) in _NUMBERS and x.node.dtype.kind == "f":
                    return number(other).apply((x,))[0]
                other = as_operand(other, x)
                if other is NotImplemented:
                    return other
            return node().apply((x, other))[0]
        except ValueError as error:
            raise broadcast_error(symbol, x, other, error) from None
        except AttributeError as error:
            backend.translate_error(symbol, error, [x.array])
            raise

    return method


def _reflected(symbol: str, node: type[FunctionNode]) -> Method:
    """``other ∘ x``, where ``other`` is no Variable."""

    def method(x: Variable, other: Any) -> Any:
        other = as_operand(other, x)
        if other is NotImplemented:
            return other
        try:
            return node().apply((other, x))[0]
        except ValueError as error:
            raise broadcast_error(symbol, other, x, error) from None

    return method


def _floordiv(x: Variable | Array, other: Any) -> Any:
    other = as_operand(other, x)
    return other if other is NotImplemented else floor_divide(x, other)


def _rfloordiv(x: Variable | Array, other: Any) -> Any:
    other = as_operand(other, x)
    return other if other is NotImplemented else floor_divide(other, x)


def _single(sequence: tuple[Any, ...]) -> Any:
    """``(2, 3)`` of both ``f(2, 3)`` and ``f((2, 3))``."""
    return (
        sequence[0]
        if len(sequence) == 1 and not isinstance(sequence[0], int | np.integer)
        else sequence
    )


def _reshape(x: Variable, *shape: Any) -> Variable:
    """The same elements in another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``;
    :func:`mnpar.functions.reshape`.
    """
    return reshape(x, _single(shape))


def _transpose(x: Variable, *axes: Any) -> Variable:
    """The axes in another order, without arguments the reverse: ``x.transpose(1, 0)`` or
    ``x.transpose((1, 0))``; :func:`mnpar.functions.transpose`.
    """
    return transpose(x, _single(axes) if axes else None)


def _mean(x: Variable, axis: Any = None, weights: Any = None, keepdims: bool = False) -> Variable:
    """The mean over some axes: :func:`mnpar.functions.average`."""
    return average(x, axis, weights, keepdims)


_add = _binary("+", Add, AddConstant)
_mul = _binary("*", Mul, MulConstant)

METHODS: dict[str, Callable[..., Any]] = {
    "__add__": _add,
    "__radd__": _add,
    "__sub__": _binary("-", Sub, lambda c: AddConstant(-c)),
    "__rsub__": _reflected("-", Sub),
    "__mul__": _mul,
    "__rmul__": _mul,
    "__truediv__": _binary("/", Div),
    "__rtruediv__": _reflected("/", Div),
    "__floordiv__": _floordiv,
    "__rfloordiv__": _rfloordiv,
    "__pow__": _binary("**", Pow, PowConstant),
    "__rpow__": _reflected("**", Pow),
    "__matmul__": matmul,
    "__rmatmul__": lambda x, other: matmul(other, x),
    "__pos__": lambda x: x,
    "__neg__": lambda x: Neg().apply((x,))[0],
    "__abs__": absolute,
    "__getitem__": get_item,
    "reshape": _reshape,
    "transpose": _transpose,
    "sum": explain_keywords(sum),
    "mean": explain_keywords(_mean),
    "max": explain_keywords(max),
    "min": explain_keywords(min),
    "astype": cast,
    "conj": conj,
}
PARTS = {"real": real, "imag": imag}

for _name, _method in METHODS.items():
    setattr(Variable, _name, _method)
for _name, _part in PARTS.items():
    setattr(Variable, _name, property(_part))
