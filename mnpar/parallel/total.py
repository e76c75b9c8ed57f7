"""Sums of numbers, such as squares of norms, over the ranks that have pieces or parts of a
parameter: for placement.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mnpar.backend import Array

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class Total:
    """Adds numbers up over the ranks that have pieces, then over those that have parts, of which
    each gives its share.
    """

    def __init__(self, pieces: Communicator | None, comm: Communicator, share: float) -> None:
        self._pieces = pieces
        self._comm = comm
        self._share = share
        self.asked = False

    def __call__(self, values: Array) -> Array:
        self.asked, values = True, np.asarray(values, np.float64)
        if self._pieces is not None:
            values = self._pieces.allreduce(values)
        return (
            values
            if self._comm.size == 1
            else self._comm.allreduce(np.asarray(values * self._share))
        )
