"""sendrecv and shift: every rank sends to one rank and receives from another, in one function.

It says the same to its peers as a send and a recv do, so either end may be one of those. A large
array leaves from where it is, and its sender goes on when it has been taken, as MPI's does; in
backward only where the other end has done so too, else a copy leaves (docs/backward_order.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnpar.communicators.communicator import needed
from mnpar.communicators.operation import wait
from mnpar.communicators.waiting import ANY
from mnpar.communicators.wire import REFUSED, WAITED_FOR, WANTS, Call, Header, call_of
from mnpar.configuration import is_recording
from mnpar.functions.communication import Communication, Keys, arrays_of, by_keys, peer

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.communicators.waiting import Steps


class SendRecv(Communication):
    """Give arrays to ``dest``, then take arrays from ``source``; None for either: nothing. Adjoint:
    the other way round.

    Args:
        comm: their communicator.
        dest, source: ranks or None.
        tags: of what is given and of what is taken.
        as_tuple: whether a tuple is given.
        patient: a large array is not copied, and has been taken before this ends.
        of: as in Communication.
    """

    op = "sendrecv"
    numbers = (0, 0)  # of the message given and the message taken, between their two ranks
    wants = asked = False  # a gradient from dest; one for source
    of_tuple = False  # whether a tuple or dict was taken
    keys: Keys = None  # of what is given
    of_keys: Keys = None  # of what was taken
    mutual = False  # whether source, too, waited until this rank had taken it

    def __init__(
        self,
        comm: Communicator,
        dest: int | None,
        source: int | None,
        tags: tuple[int, int],
        as_tuple: bool = False,
        patient: bool = True,
        of: Communication | None = None,
    ) -> None:
        super().__init__(comm, of)
        self.dest = dest
        self.source = source
        self.tags = tags
        self.as_tuple = as_tuple
        self.patient = patient

    def forward(self, *xs: Any) -> Any:
        channel = self.comm.channel(self.order)
        call = self.gift()
        value = ()
        given = None
        if self.dest is not None:
            give = channel.hand if self.patient else channel.give
            number, given = give(
                by_keys(xs, self.keys) if self.as_tuple else xs[0], call, self.dest, self.tags[0]
            )
            self.numbers = number, 0
        if self.source is not None:
            value = self.taken(*channel.recv_now(self.receipt, self.source, self.tags[1]))
        if given is not None:
            wait(channel.transport, given)
            given.value()
        self.differentiable = self.wants or self.asked
        return value

    def steps(self, *xs: Any) -> Steps[Any]:
        channel = self.channel
        call = self.gift()
        value = ()
        given = None
        if self.dest is not None:
            give = channel.hand if self.patient else channel.give
            number, given = give(
                by_keys(xs, self.keys) if self.as_tuple else xs[0], call, self.dest, self.tags[0]
            )
            self.numbers = number, 0
        if self.source is not None:
            value = self.taken(
                *(yield from channel.recv(self.receipt(), self.source, self.tags[1]))
            )
        if given is not None:
            yield given
        self.differentiable = self.wants or self.asked
        return value

    def gift(self) -> Call:
        """What the message that it sends says."""
        self.recording = on = is_recording()
        self.wants = wants = self.differentiable and on
        return call_of(
            ("send", self.site, wants, on, 0, "sum", self.order, self.told(self.tags[0]), False)
        )

    def receipt(self) -> Call:
        """What a message that it waits for too long will hear."""
        return call_of(
            ("recv", self.site, self.wants, self.recording, 0, "sum", self.order, 0, False)
        )

    def taken(self, value: Any, header: Header, source: int, tag: int) -> Any:
        """What came."""
        wanted = header.flags & WANTS
        if type(value) is dict:
            self.of_keys = tuple(value)
            value = tuple(value.values())
        self.source = source
        self.numbers = (self.numbers[0], header.seq)
        self.of_tuple = type(value) is tuple
        self.mutual = header.flags & WAITED_FOR != 0
        if header.flags & REFUSED and self.of is not None:
            self.of.refused = True
        if wanted and self.recording:
            self.asked = True
        elif wanted:
            self.refuse(header.seq, source)
        return value

    def backward(self, *gys: Any) -> Any:
        back = self.comm.channel(self.order + 1)
        given, taken = [back.reply_tag(number) for number in self.numbers]
        dest = self.source if self.asked else None
        source = self.dest if self.wants and not self.refused else None
        function = SendRecv(
            self.comm, dest, source, (taken, given), self.of_tuple, self.mutual, of=self
        )
        gxs = self.adjoint(function, *(gys if self.asked else ()))
        # of a tuple there may be none at all
        return gxs if len(gxs) == len(self.inputs) else (None,) * len(self.inputs)


def _run(function: SendRecv, x: Any) -> Any:
    xs, function.as_tuple, function.keys = arrays_of(x)
    ys = function.apply(xs)
    return by_keys(ys, function.of_keys) if function.of_tuple else ys[0]


def sendrecv(x: Any, communicator: Communicator, dest: int, source: int, tag: int = 0) -> Any:
    """Send to one rank and receive from another, as both ends of a shift do.

    As with MPI's, it may be that it returns only when ``dest`` has taken the array: large ones are
    not copied.

    Args:
        x: a Variable or array, or a tuple, list or dict of them, for ``dest``.
        communicator: the ranks among which ``dest`` and ``source`` count.
        dest, source: who calls the same (or ``recv``, or ``send``) with this rank as its source,
            and as its dest.
        tag: tells messages between the same ranks apart.

    Returns:
        What ``source`` sent.

    Raises:
        ValueError: there is no such rank or tag; nothing is sent then.
        DeadlockError: a rank has ended, or all wait for each other.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(
        ...     lambda comm: F.sendrecv(
        ...         np.array(comm.rank), comm, 1 - comm.rank, 1 - comm.rank
        ...     ).item(),
        ...     ranks=2,
        ... )
        [1, 0]
    """
    dest = peer(communicator, dest, "sendrecv(x, comm, dest, source)")
    source = communicator.peer(source, ANY)
    tag = communicator.tag(tag)
    return _run(SendRecv(communicator, dest, source, (tag, tag)), x)


def shift(comm: Communicator, x: Any, steps: int = 1) -> Any:
    """Pass an array round the ring of ranks: to rank + steps, from rank - steps. Gradients go the
    other way.

    Args:
        comm: all its ranks call this.
        x: a Variable or array of any shape, or a tuple, list or dict of them. A large array is not
            copied on its way out.
        steps: how far; negative goes down.

    Returns:
        What rank - steps gave.

    Chainer's function of this name, which moves the channels of images, is :func:`shift_channels`.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.shift(comm, np.array(comm.rank)).item(), ranks=3)
        [2, 0, 1]
    """
    needed(comm, "shift(comm, x), which hands x to the next rank (of channels: shift_channels)")
    dest = (comm.rank + steps) % comm.size
    source = (comm.rank - steps) % comm.size
    return _run(SendRecv(comm, dest, source, (0, 0)), x)
