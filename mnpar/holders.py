"""Holders of a parameter: the ranks that have other parts of it, so that what is computed of the
whole parameter is known on each.

The record lies on the parameter (``param.holders``). An optimizer writes it, by what links say of
their communicators (:meth:`mnpar.Link.gradient_comms`) or, on a mesh, by what all ranks have
(mnpar/parallel/data/placement.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mnpar.backend import Array

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Share(NamedTuple):
    """Ranks that have parts of a parameter.

    Args:
        comm: their communicator.
        weight: of this rank's part in a sum over them: less than 1 if others have the same part.
    """

    comm: Communicator
    weight: float = 1.0


class Holders(NamedTuple):
    """The ranks that hold a parameter together with this one.

    Args:
        parts: those with the other parts of it; none if each rank that has it has it whole.
        cut: the same while it is in pieces (states in shards): also ranks whose copies are cut
            elsewhere, so that copies get sums with the same last digits.
    """

    parts: tuple[Share, ...] = ()
    cut: tuple[Share, ...] = ()

    def total(self, values: Array, piece: Piece | None = None) -> Array:
        """Return the sums of numbers over all parts and pieces; all ranks that have one call it.

        Args:
            values: of this rank's part, or piece of it.
            piece: what this rank has of its part; None: all of it.
        """
        if piece is not None:
            values = piece.comm.allreduce(np.asarray(values, np.float64))
        for comm, weight in self.parts if piece is None else self.cut:
            values = comm.allreduce(np.asarray(values * weight, np.float64))
        return values


class Piece(NamedTuple):
    """The elements of its part of a parameter that a rank steps with, where ranks with copies
    divide the work.

    Args:
        shape: of the part.
        inside: which elements of it, flat, the piece has.
        comm: the ranks that have the other pieces.
    """

    shape: tuple[int, ...]
    inside: slice
    comm: Communicator


# of a parameter that no other rank has a part of
WHOLE = Holders()
