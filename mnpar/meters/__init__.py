"""Meters: means, counts, error rates and times, of one rank or of all ranks.

``add`` adds values, ``value()`` returns the result, ``reset()`` starts anew. ``sync(comm)``, called
by all ranks, combines their meters: each rank's meter then has the value of one that was given the
values of all ranks. Reset a meter after ``sync`` if it is used again: values that are combined
twice count twice. The meters and their numbers are flashlight's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mnpar.communicators.communicator import require_communicator
from mnpar.errors import MismatchError
from mnpar.meters.averages import Average, AverageValueMeter
from mnpar.meters.judgements import (
    CountMeter,
    EditDistanceMeter,
    Edits,
    FrameErrorMeter,
    MSEMeter,
    TopKMeter,
)
from mnpar.meters.times import TimeMeter

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

__all__ = [
    "Average",
    "AverageValueMeter",
    "CountMeter",
    "EditDistanceMeter",
    "Edits",
    "FrameErrorMeter",
    "MSEMeter",
    "TimeMeter",
    "TopKMeter",
    "sync",
]


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
