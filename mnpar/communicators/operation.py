"""Communications as steps, which are waited for at once or as an Operation.

Each communication is written once, as steps: a generator that yields what it waits for
(``Pending``). :func:`complete` drives it to its end. An :class:`Operation` starts it and lets the
program go on; it takes its next steps whenever this rank waits for anything, or calls
:meth:`Operation.test`. So no thread is needed, and a rank that waits never keeps another one
waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from threading import get_ident
from typing import Any

from mnpar.communicators.transport import Transport
from mnpar.communicators.waiting import Pending, Steps, T, Waiting
from mnpar.errors import CommunicatorError
from mnpar.runtime.callsite import call_site, site_of_thread


def complete(transport: Transport, steps: Steps[T]) -> T:
    """Take all steps; return their result."""
    try:
        pending = next(steps)
        while True:
            wait(transport, pending)
            pending = steps.send(pending.value())
    except StopIteration as end:
        result: T = end.value
        return result


def no_steps() -> Steps[None]:
    """Return the steps of a communication that is done already."""
    return
    yield


def wait(transport: Transport, pending: Pending) -> None:
    """Wait until one step can be taken, while this rank's other operations go on."""
    active = transport.active
    while active and not pending.ready():
        others = itertools.cycle(tuple(active))
        at_once = min(len(active), transport.at_once)
        found: list[Operation] = []

        def ready(
            others: Iterator[Operation] = others,
            at_once: int = at_once,
            found: list[Operation] = found,
        ) -> bool:
            if pending.ready():
                return True
            found.extend([one for one in itertools.islice(others, at_once) if one.ready()])
            return bool(found)

        transport.wait(pending._replace(ready=ready))
        for other in found:
            other.step()
    if not pending.ready():
        transport.wait(pending)


def used_twice(transport: Transport, call: str) -> CommunicatorError:
    """Return the error of a call, said with its line, that is made while another one, on the same
    communicator, waits in another thread.
    """
    thread = transport.in_use
    if thread == get_ident():
        where = "while it waits in another call (a signal handler, or a callback, makes this)"
    else:
        where = f"while another thread waits at {site_of_thread(thread) or 'its end'}"
    return CommunicatorError(
        f"rank {transport.rank} calls {call} {where}, on one communicator: nobody could tell whose "
        "message is whose. Let one thread make all calls of communicators; others hand it what to "
        "send, in a queue.Queue"
    )


class Operation:
    """A communication under way, as the communicator's non-blocking methods return it.

    Args:
        transport: carries it.
        steps: what is to be done; its result is what they return.

    Example:
        >>> import numpy as np, mnpar
        >>> def program(comm):
        ...     operation = comm.iallreduce(np.array([comm.rank]))
        ...     return operation.wait()
        >>> mnpar.run(program, ranks=3)[0]
        array([3])
    """

    def __init__(self, transport: Transport, steps: Steps[Any]) -> None:
        self._transport, self._steps = transport, steps
        self._pending: Pending | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self.done = False
        self._advance(None)
        if self._error is not None:  # a wrong argument
            raise self._error
        if not self.done:
            transport.active[self] = None

    def belongs_to(self, transport: Transport) -> bool:
        """Return whether this transport carries the operation."""
        return self._transport is transport

    @property
    def waiting(self) -> Waiting | None:
        """The description of what it waits for; None if it is done."""
        return None if self._pending is None else self._pending.waiting

    def ready(self) -> bool:
        """Return whether the next step can be taken."""
        return self._pending is not None and self._pending.ready()

    def step(self) -> None:
        """Take the steps that can be taken without waiting; an error is kept, and raised by
        :meth:`wait`.
        """
        while self._pending is not None and self._pending.ready():
            self._advance(self._pending.value())

    def _advance(self, value: Any) -> None:
        try:
            self._pending = self._steps.send(value)
        except BaseException as error:
            self._pending, self.done = None, True
            if isinstance(error, StopIteration):
                self._value = error.value
            else:
                self._error = error
            self._transport.active.pop(self, None)

    def test(self) -> bool:
        """Take the steps that can be taken without waiting; return whether it is done.

        Raises:
            CommunicatorError: another thread waits on the communicator.
        """
        if self._pending is not None and self._transport.in_use:
            raise used_twice(self._transport, f"test of an operation at {call_site(1)}")
        self.step()
        if not self.done:
            self._transport.pause()
        return self.done

    def wait(self) -> Any:
        """Wait, and return the result of the communication.

        Raises:
            MismatchError, DeadlockError: as the communication's blocking form does.
            CommunicatorError: another thread waits on the communicator.
        """
        if self._pending is not None:
            transport = self._transport
            if transport.in_use:
                raise used_twice(transport, f"wait of an operation at {call_site(1)}")
            transport.in_use = get_ident()
            try:
                while self._pending is not None:
                    wait(transport, self._pending)
                    self.step()
            finally:
                transport.in_use = 0
        if self._error is not None:
            raise self._error
        return self._value
