"""What ranks that step together tell each other once in each update: a few numbers, before backward or with the gradients.

Before backward they have to meet where a gradient may leave for another rank during it, since it needs its weight then; the
ranks wait for the slowest forward. Otherwise the numbers travel in the message of the gradients and cost nothing: the loss
is weighted by the samples of the update before, and the sum corrected where these were others now.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from mnpar import backend
from mnpar.parameter import Parameter
from mnpar.variable import Variable, backward

_NUMBERS = struct.Struct("<2d6B")


class Row(NamedTuple):
    """What a rank tells the others when they meet, once in each update."""

    weight: float  # of its loss: samples, or 1; -1: it has a loss of it does not know how many samples; 0: it has none
    held: float = 0.0  # the weight of the gradients that it added up before
    stale: bool = False  # its parameters are not those that were made equal
    final: bool = False  # its forward cannot be run again: it communicated, or changed persistent values
    manual: bool = False  # its gradients are there already, unweighted
    joining: bool = False  # it has no samples any more
    talks: bool = False  # its forward communicated
    unsettled: bool = False  # it has not looked yet whether its model fits together with those of other ranks of a mesh

    def packed(self) -> bytes:
        """As bytes."""
        return _NUMBERS.pack(*self)

    @classmethod
    def of(cls, note: bytes) -> Row:
        """A row from its bytes."""
        return cls(*_NUMBERS.unpack(note))


def total_of(rows: list[Row]) -> float:
    """The weight of all losses, and of the gradients that were added up before."""
    return sum([abs(row.weight) + row.held for row in rows])


def unknown_among_known(rows: list[Row]) -> list[int]:
    """The ranks that do not know of how many samples their loss is, where others know it."""
    unknown = [rank for rank, row in enumerate(rows) if row.weight < 0]
    return unknown if any([row.weight > 0 or row.held for row in rows]) else []


class Weighted:
    """A loss whose backward starts from its weight. The loss stays as it is: it may be a parameter, or another optimizer's too.

    Args:
        loss: a Variable.
        weight: what it counts.
        scale: the loss scale, if there is one.
    """

    def __init__(self, loss: Variable, weight: float, scale: float | None) -> None:
        self.loss = loss
        given: Any = None if isinstance(loss, Parameter) else loss.grad
        if given is not None:
            self._start = backend.unscalar(given * loss.dtype.type(weight))
        elif loss.size == 1:
            self._start = loss.xp.array(weight * (scale or 1.0), loss.dtype).reshape(loss.shape)
        else:
            self._start = None

    def backward(self, loss_scale: float | None = None) -> None:
        """As a loss's own."""
        backward([self.loss], [self._start], loss_scale=loss_scale)
