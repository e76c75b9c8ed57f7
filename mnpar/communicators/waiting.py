"""Waits: a communication is a generator of them (``Steps``), so it can be waited for now or later.

The steps of a communication yield a ``Pending`` where they need something of other ranks.
``Waiting`` describes the awaited message or collective, for the errors of waits that would last for
ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from mnpar.communicators.wire import CUT_ALIKE, UPDATE, read_header

ANY = -1  # any source, any tag
FORWARD, BACKWARD = 0, 1
BACKWARD_TOO = (
    "every rank that has communicated runs backward: mnpar.backward(), if it has no loss; "
    "mnpar.torch.backward(), with PyTorch's tensors"
)
UPDATE_TOO = "all ranks make as many updates: one that has no more batches calls optimizer.join()"

CALL_TOO = (
    "all ranks of a communicator call its collectives: none stands under an if that is true on "
    "some ranks only"
)

ONE_COMMUNICATOR = (
    "ranks wait on different communicators: only calls of one and the same meet each other"
)

SEND_FIRST = (
    "where all receive nobody sends: send before you receive (send never waits), or use sendrecv"
)

SAME_TAG = (
    "a receive takes only messages of its own tag, from its own source and on its own "
    "communicator: both calls must name the same"
)


def on_communicator(name: str) -> str:
    """Name the communicator on which something is done, where another one has the same ranks."""
    return f", on communicator {name}"


def on_ranks(ranks: Sequence[int]) -> str:
    """Name a communicator by its ranks in the job."""
    return f", on the communicator of ranks {', '.join(map(str, ranks))}"


_COMMUNICATOR = re.compile(on_communicator("") + r"([\d.]+)")


def untaken(dest: int, source: int, tag: int, text: str) -> str:
    """Return the warning about a message that rank ``dest`` never received; ``text`` is its
    header's.
    """
    if text.startswith("gradient of"):  # its tag is a number that no user gave
        return f"rank {dest} never took a gradient from rank {source}: {text}; {BACKWARD_TOO}"
    return (
        f"rank {dest} never received a message from rank {source}, tag {tag}: {text}; "
        f"every send needs a recv on rank {dest}"
    )


def unfinished(rank: int, text: str) -> str:
    """Return the warning about an operation that was started, and that other ranks never came to:
    nobody waited for it.
    """
    return (
        f"rank {rank} started {text}, which could not end: others never came to it, or sent nothing"
    )


class Waiting(NamedTuple):
    """The description of a wait, shown when it lasts too long."""

    what: str  # "recv", "gradient of allreduce"
    site: str
    peer: int | None = None  # None: all ranks of the communicator
    tag: int = 0
    seq: int = 0
    order: int = 0
    head: bytes = b""  # begins with the header of what this rank gives; nothing if it only takes

    @property
    def from_any(self) -> bool:
        """Return whether it waits for a message from any rank."""
        return self.peer == ANY

    def advice(self, finished: bool, rows: str) -> str:
        """Return the remedy where ranks have finished instead, where all receive, where another
        message has come, or where some are in backward or in a collective and others are not, as
        the rows of a table say.
        """
        if len(set(_COMMUNICATOR.findall(rows))) > 1:
            return ONE_COMMUNICATOR
        if self.peer is not None and not self.order and "has come" in rows:
            return SAME_TAG
        if finished:
            return (
                BACKWARD_TOO
                if self.order
                else UPDATE_TOO
                if self.what == UPDATE
                else CALL_TOO
                if self.peer is None
                else CUT_ALIKE
                if " for an array " in self.what
                else ""
            )
        waits = [row for row in rows.splitlines() if ": waits in " in row]
        if len({"waits in gradient" in row for row in waits}) > 1:
            return BACKWARD_TOO
        if len({"waits in recv" in row or "waits in send" in row for row in waits}) > 1:
            return CALL_TOO
        receives = all(
            ["waits in recv from" in row and "has come" not in row for row in rows.splitlines()]
        )
        return SEND_FIRST if receives else ""

    def __str__(self) -> str:
        whom = (
            ""
            if self.peer is None
            else f" from {'any rank' if self.peer == ANY else f'rank {self.peer}'}"
        )
        # its tag is a number that no user gave; what comes back to who sent is the gradient of a
        # send
        if self.order:
            back = self.order % 2 and self.what.endswith("recv")
            return (
                f"{self.what[:-4]}send to rank {self.peer} at {self.site}"
                if back
                else f"{self._does}{whom} at {self.site}"
            )
        if self.what == "send":  # until it has been taken
            whom = f" to rank {self.peer}"
        tag = f", tag {self.tag}" if self.peer is not None and self.tag != ANY else ""
        return f"{self._does}{whom}{tag} at {self.site}"

    @property
    def _does(self) -> str:
        """The call, with the form of what this rank gives."""
        return read_header(self.head).said if self.head else self.what

    def beside(self, ranks: Sequence[int], me: int, size: int) -> str:
        """Return the numbers in the job of the ranks it waits for, where the communicator's numbers
        are others: ``ranks`` are those of the communicator among the ``size`` in the job, and
        ``me`` is waiting.
        """
        if self.peer == ANY:
            return "; it could come from " + " or ".join(
                [f"rank {rank}" for rank in ranks if rank != me or len(ranks) == 1]
            )
        if self.peer is None:
            return (
                f"; its communicator has ranks {', '.join(map(str, ranks))}"
                if [*ranks] != [*range(size)]
                else ""
            )
        return (
            f"; that is rank {ranks[self.peer]} of the job" if ranks[self.peer] != self.peer else ""
        )


class Pending(NamedTuple):
    """A wait: the steps of a communication yield it, and are sent its value when it is ready."""

    ready: Callable[[], bool]  # looks, and never waits
    value: Callable[[], Any]  # asked for once, after ``ready()``
    waiting: Waiting
    meeting: object = ""  # the same for all ranks that wait in the same collective; "" for messages


def nothing() -> None:
    """Return None, the value of a ``Pending`` that has none."""


T = TypeVar("T")
Steps: TypeAlias = Generator[Pending, Any, T]
