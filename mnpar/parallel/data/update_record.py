"""The few numbers that ranks which sum gradients tell each other in each update.

An optimizer's are the note of the sum of the gradients (:meth:`Communicator.allreduce_if`) and cost
nothing, unless a rank has to hear the others before its backward. A DistributedDataParallel, which
has no part in the loss, tells them after each forward.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar.parallel.data.consistency import NO_DIGEST

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

_NUMBERS = struct.Struct(f"<2dId11?B2I{len(NO_DIGEST)}s")
_NOTHING = np.empty(0, np.float32)


class UpdateRecord(NamedTuple):
    """The message of a rank to the others, once in each update."""

    # what its loss counts: its samples, or 1; 0: it has no loss; -1: it has one of nobody knows how
    # many samples
    weight: float
    held: float = 0.0  # the weight of the gradients that no_sync added up before
    # of a loss of nobody is sure how many samples, those that its graph shows (rows.py), and what
    # they weigh in it
    rows: int = 0
    rows_weight: float = 0.0
    first: bool = False  # it tells this before its backward, and so without gradients
    stale: bool = False  # its parameters are not those that were made equal
    # its forward cannot be run again: it communicated, or changed persistent values
    final: bool = False
    manual: bool = False  # its gradients are there already, unweighted
    joining: bool = False  # it has no samples any more
    # it has not looked yet whether its model fits together with those of other ranks of a mesh
    unsettled: bool = False
    asks: bool = False  # its step may sum norms of pieces of weights that stages share
    # its values may have been changed otherwise than by steps that all ranks take
    altered: bool = False
    # its forward communicated with the ranks that have the copies, by the same communicator
    within: bool = False
    lossless: bool = False  # it had samples, but its loss function returned no loss
    diverged: bool = False  # its loss, or the last sum of gradients, has NaN or infinity
    # what its last backward has found of gradients that were reduced before (ddp.py)
    kept: int = 0
    number: int = 0  # of its optimizer (fingerprint.py)
    rules: int = 0  # equal on ranks with equal hyperparameters
    digest: bytes = NO_DIGEST  # of its values, in updates in which they are compared

    def pack(self) -> bytes:
        """Return it as bytes."""
        return _NUMBERS.pack(*self)

    @classmethod
    def unpack(cls, note: bytes) -> UpdateRecord:
        """Return the record of these bytes."""
        return cls(*_NUMBERS.unpack(note))


# flags that all ranks of a mesh heed if any of them has set them
_OF_ANY = ("first", "stale", "final", "manual", "unsettled", "asks", "altered", "diverged")


def exchange_records(mine: UpdateRecord, comm: Communicator) -> list[UpdateRecord]:
    """Return the records of all ranks, without a sum. Those that come with their gradients learn
    by ``mine.first`` that there is none.
    """
    records: list[UpdateRecord] = []

    def keep(notes: list[bytes]) -> bool:
        records.extend(map(UpdateRecord.unpack, notes))
        return False

    comm.allreduce_if(_NOTHING, mine.pack(), keep, _NOTHING)
    return records


def gather_records(mine: UpdateRecord, comm: Communicator) -> list[UpdateRecord]:
    """Return the records of all ranks, none of which comes with gradients."""
    notes = comm.allgather(np.frombuffer(mine.pack(), np.uint8))
    return [UpdateRecord.unpack(note.tobytes()) for note in notes]


def share_flags(records: list[UpdateRecord]) -> list[UpdateRecord]:
    """Return the records with each flag set that is set in any of them."""
    flags: dict[str, Any] = {
        name: any([getattr(record, name) for record in records]) for name in _OF_ANY
    }
    return [record._replace(**flags) for record in records]


def total_weight(records: list[UpdateRecord]) -> float:
    """Return the weight of all losses, and of the gradients that were added up before."""
    return sum([abs(record.weight) + record.held for record in records])


def find_unknown(records: list[UpdateRecord]) -> list[int]:
    """Return the ranks that do not know of how many samples their loss is, where others know it."""
    unknown = [rank for rank, record in enumerate(records) if record.weight < 0]
    return unknown if any([record.weight > 0 or record.held for record in records]) else []


def check_known(records: list[UpdateRecord]) -> None:
    """Raise ValueError, on all ranks, if some do not know of how many samples their loss is, where
    others know it.
    """
    if unknown := find_unknown(records):
        raise ValueError(UNKNOWN.format(f"the losses' of ranks {unknown}"))


UNKNOWN = (
    "of how many samples {} loss is the mean cannot be told from the arguments of the loss "
    "function: give create_multi_node_optimizer(samples=a function of these arguments), or "
    "reduce='mean'"
)
