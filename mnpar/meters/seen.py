"""Helpers of meters: conversion of arguments, combination over ranks, and the base of meters that
are sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import MismatchError

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def of_all(meter: Any, state: Array, comm: Communicator) -> list[Array]:
    """The states of a meter on all ranks, in their order.

    Raises:
        MismatchError: another rank's is another kind of meter; on all ranks.
    """
    told = comm.allgather_obj((type(meter).__name__, state))
    for rank, (kind, other) in enumerate(told):
        if (kind, other.shape) != (told[0][0], told[0][1].shape):
            raise MismatchError(
                f"ranks put different meters together: rank 0 has a {told[0][0]} of "
                f"{told[0][1].size} numbers, "
                f"rank {rank} a {kind} of {other.size}: all ranks name the same meters in the "
                "same order"
            )
    return [other for _, other in told]


def on_host(x: Any) -> Array:
    """An array or Variable as numpy's array."""
    return np.asarray(backend.to_host(getattr(x, "array", x)))


def in_pairs(output: Any, target: Any) -> tuple[Array, Array]:
    """Outputs and their targets, of one shape."""
    output = on_host(output)
    target = on_host(target)
    if output.shape != target.shape:
        raise ValueError(
            f"outputs of shape {output.shape} are compared with targets of shape {target.shape}"
        )
    return output, target


class Sums:
    """A meter whose state is a vector of sums."""

    _size = 1

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums = np.zeros(self._size)

    def sync(self, comm: Communicator) -> None:
        """Combine the meters of all ranks, which all call this."""
        self._sums = np.sum(of_all(self, self._sums, comm), axis=0)

    def _share(self, part: float, whole: float) -> float:
        """In percent; of nothing, 0."""
        return float(100 * part / whole) if whole else 0.0
