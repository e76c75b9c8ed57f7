"""Saving before a scheduler ends the job: a signal sets a flag, and all ranks act on it after the
same iteration.

Schedulers send SIGTERM, or another signal, some time before they kill; perhaps to some ranks only,
and each is at another point of its work. A checkpoint needs all ranks at one iteration. So the
signal's handler only sets a flag, and after each iteration the ranks share their flags, by a
non-blocking allreduce whose result is looked at after the next iteration: no rank waits for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.communicators.communicator import needed

if TYPE_CHECKING:
    from mnpar.communicators import Communicator
    from mnpar.communicators.operation import Operation

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Notice:
    """Whether the job is to end. Called by all ranks after an iteration, it says the same on all of
    them.

    From the moment it is made, the signals no longer end this process, until :meth:`close` or the
    end of a ``with`` block.

    Args:
        comm: all its ranks make it and call it, in the same iterations.
        signals: that are taken as a notice. MPICH's mpiexec and srun pass SIGTERM on to the ranks;
            Open MPI's mpiexec kills them at once, but passes SIGUSR1 on. Signals come to main
            threads only; elsewhere :meth:`note` does the same.

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
        needed(comm, "Notice(comm)")
        self.comm = comm
        self.told = False
        self._asked: Operation | None = None
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            try:
                for number in signals:
                    self._before[number] = signal.signal(number, self._heard)
            except (OSError, ValueError) as error:
                self.close()
                raise ValueError(
                    f"{signal.Signals(number).name} cannot be caught: {error}"
                ) from None

    def __enter__(self) -> Notice:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.told = True

    def note(self) -> None:
        """Do what a signal does, on this rank."""
        self.told = True

    def __call__(self) -> bool:
        """Whether a rank had heard a signal when it last called this, or, on one rank, now.
        Collective.
        """
        if self.comm.size == 1:
            return self.told
        found = self._asked is not None and bool(self._asked.wait()[0])
        self._asked = (
            None if found else self.comm.iallreduce(np.array([self.told], np.int32), "max")
        )
        return found

    def close(self) -> None:
        """Let signals do what they did before."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._heard:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}
