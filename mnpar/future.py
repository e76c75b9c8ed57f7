"""Future: a Variable whose array has not arrived yet, and is waited for where it is first used."""

from __future__ import annotations

from collections.abc import Callable

from mnpar.backend import Array
from mnpar.config import is_recording, recording
from mnpar.graph import VariableNode
from mnpar.tape import current_tape
from mnpar.variable import Variable


class Once:
    """A function without arguments that is computed at the first call, and remembered.

    Args:
        finish: the function; returns Variables.
    """

    def __init__(self, finish: Callable[[], tuple[Variable, ...]]) -> None:
        self._finish: Callable[[], tuple[Variable, ...]] | None = finish
        self._results: tuple[Variable, ...] = ()

    def __call__(self) -> tuple[Variable, ...]:
        if self._finish is not None:
            self._results, self._finish = self._finish(), None
        return self._results


def when_used(finish: Callable[[], tuple[Variable, ...]]) -> Once:
    """Finish a communication that was begun here when its result is first used, or by the backward that has to visit it.

    It is finished under the tape that is current here, and recorded if functions are recorded here.
    """
    tape, on = current_tape(), is_recording()

    def run() -> tuple[Variable, ...]:
        if once in tape.unfinished:
            tape.unfinished.remove(once)
        with tape, recording(on):
            return finish()

    once = Once(run)
    if on:
        tape.unfinished.append(once)
    return once


class Future(Variable):
    """What a non-blocking function returns. To use it in any way, or to ask for its shape, waits for its array.

    Args:
        results: finds the Variable that it stands for, among others.
        index: which of them.

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
        """The Variable itself."""
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
