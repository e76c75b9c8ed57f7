"""What meters share: arrays as they are given, and states that are sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def on_host(x: Any) -> Array:
    """An array or Variable as numpy's array."""
    return np.asarray(backend.to_host(getattr(x, "array", x)))


def in_pairs(output: Any, target: Any) -> tuple[Array, Array]:
    """Outputs and their targets, of one shape."""
    output, target = on_host(output), on_host(target)
    if output.shape != target.shape:
        raise ValueError(f"outputs of shape {output.shape} are compared with targets of shape {target.shape}")
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
        """Take what all ranks have seen; all call it."""
        self._sums = comm.allreduce(self._sums)

    def _share(self, part: float, whole: float) -> float:
        """In percent; of nothing, 0."""
        return float(100 * part / whole) if whole else 0.0
