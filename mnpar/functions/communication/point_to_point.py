"""Messages between two ranks: send and recv, each the other's adjoint, and both in one function.

ChainerMN's programs thread *delegate variables* from one communication to the next, so that
backward finds all of them in an order that works. Here the tape does that (laws 3 and 4): a
delegate may be passed on, dropped or returned as a loss.

In sendrecv and shift every rank sends to one rank and receives from another. Peers cannot tell this
from a send and a recv, so either end may be one of those. A large array leaves from where it is,
and its sender goes on when it has been taken, as MPI's does; in backward only where the other end
has done so too, else a copy leaves (docs/backward_order.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.operation import wait
from mnpar.communicators.waiting import ANY
from mnpar.communicators.wire import REFUSED, WAITED_FOR, WANTS, Call, Header, call_of
from mnpar.configuration import is_recording
from mnpar.errors import MismatchError
from mnpar.functions.communication.base import (
    Communication,
    Keys,
    arrays_of,
    by_keys,
    header_fields,
    peer,
)
from mnpar.variable import Variable, as_variable, backward as backward_from

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.communicators.waiting import Steps


class Send(Communication):
    """Send arrays to a rank. Adjoint: receive their gradients from it."""

    op = "send"
    keys: Keys = None  # of what is sent

    def __init__(
        self,
        comm: Communicator,
        dest: int,
        tag: int,
        as_tuple: bool = False,
        of: Communication | None = None,
    ) -> None:
        super().__init__(comm, of)
        self.dest, self.tag, self.as_tuple = dest, tag, as_tuple

    def forward(self, *xs: Any) -> Any:
        call = self.call(tag=self.tag)
        value = by_keys(xs, self.keys) if self.as_tuple else xs[0]
        self.seq = self.comm.channel(self.order).send(value, call, self.dest, self.tag)
        return np.empty(0, np.float32)

    def backward(self, delegate: Any) -> Any:
        if self.refused:
            return (None,) * len(self.inputs)
        tag = self.comm.channel(self.order + 1).reply_tag(self.seq)
        gxs = self.adjoint(Recv(self.comm, self.dest, tag, self.as_tuple, of=self))
        # of a tuple there may be none at all
        return gxs if len(gxs) == len(self.inputs) else (None,) * len(self.inputs)


class Recv(Communication):
    """Receive arrays from a rank. Adjoint: send it their gradients."""

    op = "recv"
    single = False  # only one array in the message is right
    keys: Keys = None  # of what was received

    def __init__(
        self,
        comm: Communicator,
        source: int,
        tag: int,
        as_tuple: bool = False,
        of: Communication | None = None,
    ) -> None:
        super().__init__(comm, of)
        self.source, self.tag, self.as_tuple = source, tag, as_tuple

    def forward(self) -> Any:
        self.recording = is_recording()
        return self.taken(*self.channel.recv_now(self.call, self.source, self.tag))

    def steps(self) -> Steps[Any]:
        receiving = self.channel.recv(self.call, self.source, self.tag, later=True)
        return self.taken(*(yield from receiving))

    def taken(self, value: Any, header: Header, source: int, tag: int) -> Any:
        """Note where a message came from and whether it wants a gradient; return its arrays."""
        if self.order:
            self.check_pass(header, source)
        self.source, self.tag, self.seq = source, tag, header.seq
        if type(value) is dict:
            self.keys = tuple(value)
            value = tuple(value.values())
        self.as_tuple = isinstance(value, tuple)
        if self.single and self.as_tuple:
            raise MismatchError(
                f"irecv at {self.site} takes one array, but {header.site} on rank "
                f"{self.source} sent {len(value)}: use recv"
            )
        self.differentiable = header.wants and self.recording
        if header.flags & REFUSED and self.of is not None:
            self.of.refused = True
        if header.wants and not self.differentiable:
            self.refuse(self.seq, self.source)
        return value

    def backward(self, *gys: Any) -> Any:
        tag = self.comm.channel(self.order + 1).reply_tag(self.seq)
        self.adjoint(Send(self.comm, self.source, tag, self.as_tuple, of=self), *gys)
        return ()


class Connected(tuple[Variable, ...]):
    """The result of :func:`pseudo_connect`: a tuple of Variables that can itself be returned as a
    loss.
    """

    delegate: Any = None

    def backward(self, **kwargs: Any) -> None:
        """:func:`mnpar.backward` from all of them."""
        backward_from(self, **kwargs)

    def unchain_backward(self) -> None:
        """Forget how all of them, and the delegate, were computed:
        :meth:`mnpar.Variable.unchain_backward`.
        """
        for x in self if self.delegate is None else (*self, self.delegate):
            x.unchain_backward()


def send(x: Any, communicator: Communicator, rank: int, tag: int = 0) -> Variable:
    """Send an array, or several in one message, to another rank; backward receives their gradients
    from it.

    Args:
        x: a Variable or array of any shape and dtype, or a tuple, list or dict (with text as its
            keys) of them.
        communicator: the ranks among which ``rank`` counts.
        rank: who calls :func:`recv`.
        tag: distinguishes messages between the same ranks.

    Returns:
        An empty Variable, ChainerMN's delegate: it may be given to ``recv`` or returned as this
        rank's loss, and need not be.

    Raises:
        ValueError: there is no such rank or tag.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     if comm.rank == 0:
        ...         x = mnpar.Variable(np.array([1.0, 2.0]))
        ...         F.send(x, comm, rank=1)
        ...         mnpar.backward()
        ...         return x.grad
        ...     y = F.recv(comm, rank=0)
        ...     F.sum(y * y).backward()
        >>> mnpar.run(program, ranks=2)[0]
        array([2., 4.])
    """
    dest = peer(communicator, rank, "send(x, comm, rank)")
    tag = communicator.tag(tag)
    xs, several, keys = arrays_of(x)
    function = Send(communicator, dest, tag, several)
    function.keys = keys
    (delegate,) = function.apply(xs)
    return delegate


def recv(
    communicator: Communicator,
    rank: int,
    delegate_variable: Any = None,
    tag: int = 0,
    force_tuple: bool = False,
) -> Any:
    """Receive what another rank sends; backward sends the gradient to it, or a message that there
    is none.

    Args:
        communicator: the ranks among which ``rank`` counts.
        rank: who calls :func:`send`; ``mnpar.ANY_SOURCE`` takes the first that comes.
        delegate_variable: ChainerMN's; not needed. ``unchain_backward`` of what comes goes on to
            where it came from.
        tag: the sender's; ``mnpar.ANY_TAG`` takes any.
        force_tuple: return a tuple even for a single array.

    Returns:
        A Variable with the sender's shape and dtype; a tuple of them if a tuple or list was sent, a
        dict if a dict was.

    Raises:
        ValueError: there is no such rank or tag.
        DeadlockError: the rank has ended, or all wait for each other.

    Example:
        See :func:`send`.
    """
    source = peer(communicator, rank, "recv(comm, rank)", ANY)
    tag = communicator.tag(tag, ANY)
    function = Recv(communicator, source, tag)
    function.extra_inputs = (
        (delegate_variable.node,) if isinstance(delegate_variable, Variable) else ()
    )
    ys = function.apply(())
    return by_keys(ys, function.keys) if function.as_tuple or force_tuple else ys[0]


def isend(x: Any, communicator: Communicator, rank: int, tag: int = 0) -> Variable:
    """:func:`send` by its other name: sending never blocks, and the array may be changed at once.

    Args:
        x, communicator, rank, tag: as in :func:`send`.

    Example:
        See :func:`irecv`.
    """
    return send(x, communicator, rank, tag)


def irecv(communicator: Communicator, rank: int, tag: int = 0) -> Variable:
    """Receive one array, but wait for it only where it is first used.

    Args:
        communicator: the ranks among which ``rank`` counts.
        rank: who calls :func:`send` or :func:`isend`; ``mnpar.ANY_SOURCE`` takes the first that
            comes.
        tag: the sender's; ``mnpar.ANY_TAG`` takes any. Receives take messages in the order in which
            they were started.

    Returns:
        A :class:`mnpar.Future`; backward visits it even if nobody uses it.

    Raises:
        MismatchError: where it is used, if several arrays were sent in one message.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.Variable(np.array([comm.rank + 1.0]))
        ...     y = F.irecv(comm, 1 - comm.rank)  # posted
        ...     F.isend(x, comm, 1 - comm.rank)
        ...     z = x * x  # meanwhile
        ...     F.sum(z * y).backward()  # waited for
        ...     return x.grad.tolist()
        >>> mnpar.run(program, ranks=2)  # x0²·x1 + x1²·x0
        [[8.0], [5.0]]
    """
    function = Recv(
        communicator, peer(communicator, rank, "irecv(comm, rank)", ANY), communicator.tag(tag, ANY)
    )
    function.single = True
    return function.start()


def isendrecv(x: Any, communicator: Communicator, dest: int, source: int, tag: int = 0) -> Variable:
    """:func:`mnpar.functions.sendrecv`, but wait for what is received only where it is first used:
    one array.

    Args:
        x: a Variable or array, or a tuple, list or dict of them, for ``dest``.
        communicator, dest, source, tag: as there.

    Returns:
        A :class:`mnpar.Future`.

    Raises:
        ValueError: there is no such rank or tag, which is told before anything is sent.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(
        ...     lambda comm: F.isendrecv(
        ...         np.array(comm.rank), comm, 1 - comm.rank, 1 - comm.rank
        ...     ).item(),
        ...     ranks=2,
        ... )
        [1, 0]
    """
    # refused before anything is sent
    source = peer(communicator, source, "isendrecv(x, comm, dest, source)", ANY)
    send(x, communicator, dest, tag)
    return irecv(communicator, source, tag)


def ishift(comm: Communicator, x: Any, steps: int = 1) -> Variable:
    """:func:`mnpar.functions.shift`, but wait for what comes round only where it is first used: one
    array.

    Args:
        comm: all its ranks call this.
        x: a Variable or array of any shape.
        steps: how far; negative goes down.

    Returns:
        A :class:`mnpar.Future`: what rank - steps gave.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> mnpar.run(lambda comm: F.ishift(comm, np.array(comm.rank)).item(), ranks=3)
        [2, 0, 1]
    """
    require_communicator(comm, "ishift(comm, x)")
    return isendrecv(x, comm, (comm.rank + steps) % comm.size, (comm.rank - steps) % comm.size)


def pseudo_connect(delegate_variable: Any, *actual_variables: Variable) -> Connected:
    """The actual variables, as they are: the tape already connects what ChainerMN's delegates had
    to.

    Args:
        delegate_variable: what a ``send`` returned, or None.
        actual_variables: any Variables.

    Returns:
        A tuple of the actual variables, whose ``backward()`` starts from all of them; its
        ``unchain_backward()`` goes on to what was sent, too.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> (y,) = F.pseudo_connect(None, mnpar.Variable(np.ones(2)))
        >>> y.array
        array([1., 1.])
    """
    connected = Connected(
        x if isinstance(x, Variable) else as_variable(x) for x in actual_variables
    )
    connected.delegate = delegate_variable
    return connected


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
        channel = self.channel
        call = self.gift()
        value = ()
        sent = None  # ready when dest has it
        if self.dest is not None:
            x = by_keys(xs, self.keys) if self.as_tuple else xs[0]
            if self.patient:
                number, sent = channel.send_nocopy(x, call, self.dest, self.tags[0])
            else:
                number = channel.send(x, call, self.dest, self.tags[0])
            self.numbers = number, 0
        if self.source is not None:
            value = self.taken(*channel.recv_now(self.receipt, self.source, self.tags[1]))
        if sent is not None:
            wait(channel.transport, sent)
            sent.value()
        self.differentiable = self.wants or self.asked
        return value

    def gift(self) -> Call:
        """Return the call that the message which it sends tells."""
        self.recording = on = is_recording()
        self.wants = wants = self.differentiable and on
        tag, flags, scale = header_fields() if self.order else (self.tags[0], 0, 0)
        return call_of(("send", self.site, wants, on, scale, "sum", self.order, tag, False, flags))

    def receipt(self) -> Call:
        """Return the call that errors tell of the message which it awaits."""
        return call_of(
            ("recv", self.site, self.wants, self.recording, 0, "sum", self.order, 0, False, 0)
        )

    def taken(self, value: Any, header: Header, source: int, tag: int) -> Any:
        """Note where a message came from and whether it wants a gradient; return its arrays."""
        if self.order:
            self.check_pass(header, source)
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
    require_communicator(
        comm, "shift(comm, x), which hands x to the next rank (of channels: shift_channels)"
    )
    dest = (comm.rank + steps) % comm.size
    source = (comm.rank - steps) % comm.size
    return _run(SendRecv(comm, dest, source, (0, 0)), x)
