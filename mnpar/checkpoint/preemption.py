"""Preemption: a signal announces the end of the job, and all ranks act on it after the same
iteration.

Schedulers send SIGTERM, or another signal, some time before they kill; perhaps to some ranks only,
and each is at another point of its work. A checkpoint needs all ranks at one iteration. So the
signal's handler only sets a flag, and after each iteration the ranks share their flags, by a
non-blocking allreduce whose result is read after the next iteration: no rank waits for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.communicators.communicator import require_communicator
from mnpar.runtime import system

if TYPE_CHECKING:
    from mnpar.communicators import Communicator
    from mnpar.communicators.operation import Operation

SIGNALS = system.ANNOUNCEMENTS


class Notice:
    """Says whether the job must end soon; all ranks call it after an iteration, and get the same
    answer.

    From the moment it is made, the signals no longer end this process, until :meth:`close` or the
    end of a ``with`` block.

    Args:
        comm: all its ranks make the notice and call it, in the same iterations.
        signals: the signals that announce the end. MPICH's mpiexec and srun pass SIGTERM on to the
            ranks; Open MPI's mpiexec kills the ranks at once, but passes SIGUSR1 on. Only main
            threads receive signals; elsewhere :meth:`note` does the same.

    Raises:
        ValueError: a signal cannot be caught.

    Example:
        >>> import os, signal, mnpar
        >>> def program(comm):
        ...     with mnpar.checkpoint.Notice(comm) as notice:
        ...         for iteration in range(1, 100):
        ...             if iteration == 5 and comm.rank == 1:
        ...                 notice.note()  # or somebody: kill -TERM
        ...             if notice():
        ...                 return iteration  # here all of them save
        >>> mnpar.run(program, ranks=3)
        [6, 6, 6]
    """

    def __init__(self, comm: Communicator, signals: Sequence[int] = SIGNALS) -> None:
        require_communicator(comm, "Notice(comm)")
        self.comm = comm
        self._received = False
        self._question: Operation | None = None
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            try:
                for number in signals:
                    self._before[number] = signal.signal(number, self._on_signal)
            except (OSError, ValueError) as error:
                self.close()
                raise ValueError(
                    f"{signal.Signals(number).name} cannot be caught: {error}"
                ) from None

    def __enter__(self) -> Notice:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received = True

    def note(self) -> None:
        """Do what a signal does, on this rank."""
        self._received = True

    def __call__(self) -> bool:
        """Return whether any rank had received a signal when it last called this, or, on one rank,
        now. Collective.
        """
        if self.comm.size == 1:
            return self._received
        found = self._question is not None and bool(self._question.wait()[0])
        self._question = (
            None if found else self.comm.iallreduce(np.array([self._received], np.int32), "max")
        )
        return found

    def close(self) -> None:
        """Restore the handlers of the signals."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}
