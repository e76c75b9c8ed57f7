"""The few numbers (``Row``) that ranks which step together exchange in each update: before
backward, or with the gradients.

If a gradient may be sent to another rank during backward, its weight must be known before: the
ranks meet, and wait for the slowest forward. Otherwise the rows travel in the message of the
gradients and cost nothing: the loss is weighted by the samples of the update before, and the sum is
corrected if these are others now.
"""

from __future__ import annotations

import struct
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.sites import is_internal
from mnpar.parallel.other_gradients import OtherGradients, Weighted
from mnpar.parameter import Parameter
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.parallel.placement import Placement

DIGEST = 16  # bytes
OFTEN = (
    4 + DIGEST
    # bytes at the end of a note that may change in each update: checksum of hyperparameters, and
    # the digest
)
_NUMBERS = struct.Struct(f"<2d8B2I{DIGEST}x")


class Row(NamedTuple):
    """What a rank tells the others when they meet, once in each update."""

    # what its loss counts: its samples, or 1; 0: it has no loss; -1: it has one of nobody knows how
    # many samples
    weight: float
    held: float = 0.0  # the weight of the gradients that it added up before
    stale: bool = False  # its parameters are not those that were made equal
    final: bool = (
        False  # its forward cannot be run again: it communicated, or changed persistent values
    )
    manual: bool = False  # its gradients are there already, unweighted
    joining: bool = False  # it has no samples any more
    talks: bool = False  # its forward communicated
    # it has not looked yet whether its model fits together with those of other ranks of a mesh
    unsettled: bool = False
    asks: bool = False  # its step may sum norms of pieces of weights that stages share
    altered: bool = (
        False  # its values are not those that the last step left, where steps make them alike
    )
    number: int = 0  # of its optimizer (identity.py)
    rules: int = 0  # the same where ranks have the same hyperparameters

    def packed(self) -> bytes:
        """As bytes, with zeros where there may be a digest."""
        return _NUMBERS.pack(*self)

    @classmethod
    def of(cls, note: bytes) -> Row:
        """A row from its bytes."""
        return cls(*_NUMBERS.unpack(note))


def told(mine: Row, comm: Communicator, placement: Placement | None) -> list[Row]:
    """The rows of all ranks that have copies; on a mesh, a flag that is set on any of its ranks is
    set in all of them.
    """
    everyone = comm if placement is None else placement.mesh.comm
    rows = [
        Row(*values) for values in np.stack(everyone.allgather(np.array(mine, np.float64))).tolist()
    ]
    if placement is None:
        return rows
    names = ("stale", "final", "manual", "talks", "unsettled", "asks", "altered")
    flags = {name: any([getattr(row, name) for row in rows]) for name in names}
    return [
        rows[rank]._replace(**flags)
        for rank in placement.mesh.line(placement.summed, everyone.rank)
    ]


def total_of(rows: list[Row]) -> float:
    """The weight of all losses, and of the gradients that were added up before."""
    return sum([abs(row.weight) + row.held for row in rows])


def unknown_among_known(rows: list[Row]) -> list[int]:
    """The ranks that do not know of how many samples their loss is, where others know it."""
    unknown = [rank for rank, row in enumerate(rows) if row.weight < 0]
    return unknown if any([row.weight > 0 or row.held for row in rows]) else []


def check_known(rows: list[Row]) -> None:
    """Raises ValueError on all ranks if some do not know of how many samples their loss is, where
    others know it.
    """
    if unknown := unknown_among_known(rows):
        raise ValueError(UNKNOWN.format(f"the losses' of ranks {unknown}"))


def own_weight(loss: Any, samples: float, how: str) -> float:
    """A rank's weight before it knows the others'."""
    array = getattr(loss, "array", None)
    if samples == 0 or array is None or not array.size:
        return 0.0
    return samples if how == "weighted" else 1.0


def weighted(
    loss: Any, own: float, weight: float, scale: float | None, others: OtherGradients | None
) -> Any:
    """A loss whose backward starts from the weight instead of from 1. A loss of no samples may be
    NaN, and is left out; one that is not known yet, as a pipeline's, starts from 0: other ranks
    count on this one for it.
    """
    if own == 0:
        if getattr(loss, "array", None) is None or not loss.array.size:
            return loss
        if isinstance(loss, Variable):
            return None
        weight = 0.0
    if isinstance(loss, Variable):
        return Weighted(loss, start_of(loss, weight, scale), others)
    if loss.grad is not None:
        loss.grad = backend.unscalar(loss.grad * loss.dtype.type(weight))
    elif loss.size == 1:
        loss.grad = loss.xp.full_like(loss.array, weight * (scale or 1.0))
    return loss


def share_of(rows: list[Row], rank: int, how: str, base: float = 1.0) -> tuple[float, float]:
    """What a rank's loss counts, and what the sum of the gradients is to be multiplied by.

    ``base``: what the weights of gradients that were added up before are divided by. If it is not
    1, so is that of the loss.
    """
    mine = rows[rank]
    total = total_of(rows)
    if how == "sum":
        return 1.0, 1.0
    if any([row.manual for row in rows]):
        return 1.0, 1 / len(rows)
    if any([row.held for row in rows]) or (base != 1 and total):  # the mean is made of the sum
        return abs(mine.weight) / base, base / total
    return abs(mine.weight) / total if total else 0.0, 1.0


def skipped(rows: list[Row]) -> str:
    """The warning that an update took no step, with the reason."""
    return _SKIPPED.format(_MANUAL if any([row.manual or row.held for row in rows]) else _FINAL)


def warn_user(what: str, rank: int = 0) -> None:
    """A warning that names the user's source line; by rank 0, where all ranks know of it."""
    if rank:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(what, stacklevel=level)


def start_of(loss: Variable, weight: float, scale: float | None) -> Array:
    """What backward starts from, for a loss that counts so much; None if it cannot start."""
    array = loss.array
    if loss.node.gradient is not None and not isinstance(loss, Parameter):
        return backend.unscalar(loss.grad * array.dtype.type(weight))
    if array.size == 1:
        return backend.get_array_module(array).array(
            weight * (scale or 1.0), array.dtype, ndmin=array.ndim
        )
    return None


UNKNOWN = (
    "of how many samples {} loss is the mean cannot be told from the arguments of the loss "
    "function: give "
    "create_multi_node_optimizer(samples=a function of these arguments), or reduce='mean'"
)
_SKIPPED = (
    "this update only made the parameters equal on all ranks, those of rank 0, and no step was "
    "taken. The first update of an "
    "optimizer does so, of one that was copied before it made one too, and the first with new "
    "parameters: {}"
)
_MANUAL = (
    "gradients that were there already are of other values; update(lossfun, ...) computes them "
    "once more instead"
)
_FINAL = (
    "its forward communicated, or changed persistent values, and so cannot be run once more "
    "with these: give layers their "
    "sizes to avoid it"
)
TWICE = (
    "the model has, or is in, a DistributedDataParallel of these ranks: gradients would be "
    "reduced twice. Use one of them"
)
