"""Future: the result of a non-blocking communication, a Variable that waits for its array where it
is first used.
"""

from __future__ import annotations

from collections.abc import Callable

from mnpar.autograd.graph import VariableNode
from mnpar.autograd.tape import current_tape
from mnpar.backend import Array
from mnpar.configuration import is_recording, recording
from mnpar.variable import Variable


class Once:
    """A function without arguments that runs at the first call; later calls return the same
    results.

    Args:
        finish: the function; it returns Variables.
    """

    def __init__(self, finish: Callable[[], tuple[Variable, ...]]) -> None:
        self._finish: Callable[[], tuple[Variable, ...]] | None = finish
        self._results: tuple[Variable, ...] = ()

    def __call__(self) -> tuple[Variable, ...]:
        if self._finish is not None:
            self._results, self._finish = self._finish(), None
        return self._results


def when_used(finish: Callable[[], tuple[Variable, ...]]) -> Once:
    """Complete a communication, which was started here, where its results are first used, or at the
    latest in backward.

    It belongs to the tape that is current here, and is recorded if functions are being recorded
    here.
    """
    tape = current_tape()
    on = is_recording()

    def run() -> tuple[Variable, ...]:
        if once in tape.pending:
            tape.pending.remove(once)
        with tape, recording(on):
            return finish()

    once = Once(run)
    if on:
        tape.pending.append(once)
    return once


class Future(Variable):
    """The result of a non-blocking function. Any use of it, reading its shape included, waits for
    its array.

    Args:
        results: waits, and returns the function's results.
        index: which of them this is.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     y = F.irecv(comm, 1 - comm.rank)
        ...     F.isend(np.array(comm.rank), comm, 1 - comm.rank)
        ...     return isinstance(y, mnpar.Future), y.item()  # item() waits
        >>> mnpar.run(program, ranks=2)[0]
        (True, 1)
    """

    __slots__ = ("_index", "_results")

    def __init__(self, results: Callable[[], tuple[Variable, ...]], index: int = 0) -> None:
        self._results, self._index = results, index

    def wait(self) -> Variable:
        """Wait; returns the Variable."""
        return self._results()[self._index]

    @property
    def array(self) -> Array:
        """The array, waited for."""
        return self.wait().array

    @array.setter
    def array(self, array: Array) -> None:
        self.wait().array = array

    @property
    def node(self) -> VariableNode:
        """Its place in the graph, known when the array has come."""
        return self.wait().node

    @node.setter
    def node(self, node: VariableNode) -> None:
        self.wait().node = node
