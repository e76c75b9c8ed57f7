"""Rows: how many rows of data a loss is of, and what it weighs, read from its graph where nothing
else says it.

A loss is a number, and the functions that made it from an array are at the end of its graph. The
first axis of the array that they begin with counts samples, nearly always. These numbers are good
enough to be compared among ranks, and not to weigh anything by them.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from mnpar.autograd.graph import Function, VariableNode
from mnpar.checks.joint_loss import divisor
from mnpar.functions.math.reduction import Sum
from mnpar.variable import of_synchronized


class Rows(NamedTuple):
    """The rows of a loss's data.

    Args:
        number: how many.
        weight: what they weigh together: 1 in a mean over them, ``number`` in a sum.
    """

    number: int = 0
    weight: float = 0.0

    @classmethod
    def of(cls, loss: VariableNode) -> Rows:
        """Return the rows of the arrays that reductions make the loss of.

        Example:
            >>> import numpy as np, mnpar, mnpar.functions as F
            >>> from mnpar.parallel.data.rows import Rows
            >>> x, y = 2 * mnpar.Variable(np.ones((5, 3))), 2 * mnpar.Variable(np.ones((2, 3)))
            >>> Rows.of(F.mean(x**2).node)
            Rows(number=5, weight=1.0)
            >>> Rows.of((F.sum(F.mean(x, axis=1)) + F.mean(y) / 4).node)
            Rows(number=7, weight=5.25)
        """
        number, weight = 0, 0.0
        # with each its factor in the loss, and whether rows were summed, or averaged
        stack = [(loss, 1.0, False)]
        seen: dict[int, Function] = {}
        while stack:
            x, factor, summed = stack.pop()
            function, shape = x.creator, x.shape
            if function is None or function.number in seen:
                continue
            needed = [
                y
                for y in function.inputs
                if y.requires_grad and (not shape or len(y.shape) > len(shape))
            ]
            if not needed:
                if shape:
                    number += shape[0]
                    weight += factor * (shape[0] if summed else 1)
                continue
            seen[function.number] = function
            factor /= divisor(function) or 1.0
            for y in needed:
                lost = bool(y.shape) and y.shape[0] != (shape[0] if shape else None)
                stack.append((y, factor, isinstance(function, Sum) if lost else summed))
        return cls(number, weight)


_NONE = Rows()
_since: ContextVar[Rows] = ContextVar("mnpar.parallel.data.rows", default=_NONE)


def _note(loss: VariableNode) -> None:
    before, own = _since.get(), Rows.of(loss)
    _since.set(Rows(before.number + own.number, before.weight + own.weight))


of_synchronized.append(_note)


def take_rows() -> Rows:
    """Return the rows of the losses that this rank's program has differentiated by itself since the
    last call.
    """
    rows = _since.get()
    _since.set(_NONE)
    return rows
