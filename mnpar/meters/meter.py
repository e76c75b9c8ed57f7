"""The base of meters that are sums, and helpers of all meters: conversion of arguments, combination
over ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.autograd.arraylike import ArrayLike, as_array
from mnpar.backend import Array
from mnpar.communicators.communicator import require_communicator
from mnpar.errors import MismatchError

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def gather_states(meter: Any, state: Array, comm: Communicator) -> list[Array]:
    """Return the states of a meter on all ranks, in their order.

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


def on_host(x: ArrayLike | Array) -> Array:
    """Return an array or Variable as numpy's array."""
    return np.asarray(backend.to_host(as_array(x)))


def require_one_shape(output: ArrayLike | Array, target: ArrayLike | Array) -> tuple[Array, Array]:
    """Outputs and their targets, of one shape."""
    output = on_host(output)
    target = on_host(target)
    if output.shape != target.shape:
        raise ValueError(
            f"outputs of shape {output.shape} are compared with targets of shape {target.shape}"
        )
    return output, target


class SumMeter:
    """A meter whose state is a vector of sums."""

    _size = 1

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums = np.zeros(self._size)

    def sync(self, comm: Communicator) -> None:
        """Combine the meters of all ranks, which all call this."""
        self._sums = np.sum(gather_states(self, self._sums, comm), axis=0)

    def _share(self, part: float, whole: float) -> float:
        """In percent; of nothing, 0."""
        return float(100 * part / whole) if whole else 0.0


def sync(meters: Iterable[Any], comm: Communicator) -> None:
    """Combine several meters over ranks, in order; all ranks call it with meters of the same
    classes.

    Args:
        meters: any of these.
        comm: the ranks.

    Raises:
        MismatchError: ranks name different meters.

    Example:
        >>> import mnpar
        >>> def program(comm):
        ...     meter = mnpar.meters.AverageValueMeter()
        ...     meter.add(10.0 * comm.rank, weight=comm.rank)
        ...     mnpar.meters.sync([meter], comm)
        ...     return round(meter.value().mean, 3)
        >>> mnpar.run(program, ranks=3)
        [16.667, 16.667, 16.667]
    """
    require_communicator(comm, "sync(meters, comm)")
    meters = list(meters)
    kinds = comm.allgather_obj([type(meter).__name__ for meter in meters])
    for rank, other in enumerate(kinds):
        if other != kinds[0]:
            raise MismatchError(
                f"rank 0 puts the meters {kinds[0]} together, rank {rank} {other}: all ranks "
                "name the same ones"
            )
    for meter in meters:
        meter.sync(comm)
