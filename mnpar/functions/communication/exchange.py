"""Exchange: any communication that a plan describes, as one differentiable function.

A plan (mnpar.plans) says which cells of a global array every rank has and wants. Every rank knows
all of it, so nothing is negotiated: at most one message goes from a rank to another, all are sent
before any is awaited, and there is no barrier. Each cell is copied once on its way into a message
and once out of it. The adjoint is the exchange with have and want exchanged: a halo's ghosts are
added to their owners.

:func:`iexchange` is the same in two halves, Give and Take, between which the rank can work. Each is
the other's adjoint, so backward too sends early and waits late.

The messages themselves say whether their sender wants a gradient; it comes back from those to whom
it sent. So ranks that exchange nothing need not agree on anything. Each message also carries the
fingerprint of its plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from mnpar.backend import Array
from mnpar.communicators import wire
from mnpar.communicators.communicator import Communicator, require_communicator
from mnpar.communicators.wire import Call, Header
from mnpar.functions.communication.base import Communication
from mnpar.functions.communication.delivery import Delivery, Form, form_of, gather_pieces
from mnpar.functions.communication.future import Future
from mnpar.plans import Plan
from mnpar.plans.plan import Parcel, Route, plan_of_copies, several
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.waiting import Steps


class Carrier(Communication):
    """The base of the functions of this file.

    Args:
        comm: its ranks are the plan's.
        plan: who has and wants what.
        of: the node whose gradient this one carries, None in forward.
    """

    op = "exchange"

    def __init__(self, comm: Communicator, plan: Plan, of: Carrier | None = None) -> None:
        super().__init__(comm, of)
        self.plan = plan
        self.outputs_are = "alike" if plan.gives_alike else "parts"
        self.route: Route = plan.route(comm.rank)
        # forward, all moves of the plan; backward, gradients go to those who asked for one, and
        # come from those who were asked
        self.dests: list[int] = (
            [parcel.rank for parcel in self.route.sends] if of is None else of.asked_by
        )
        self.sources: list[int] = (
            [parcel.rank for parcel in self.route.receives] if of is None else of.asked
        )
        self.seq: int = -1 if of is None else of.seq
        self.asked: list[int] = []  # the ranks from which a gradient will come
        self.asked_by: list[int] = []

    def _give(self, xs: Sequence[Array]) -> tuple[Form | None, Call]:
        """Send what others want."""
        call = self.call(self.plan.fingerprint)
        if self.order == 0:
            self.seq = self.channel.take_number()
        self.asked = list(self.dests) if call.wants else []
        form = form_of(self.plan.have[self.comm.rank], xs, self.label)
        for parcel in [parcel for parcel in self.route.sends if parcel.rank in self.dests]:
            self._send(parcel, xs, form, call)
        return form, call

    def _take(self, parcel: Parcel, delivery: Delivery, call: Call) -> Steps[None]:
        """Receive what one other rank gives."""
        if parcel.rank not in self.sources:
            delivery.put(parcel, None)
            return
        value, header = yield from self.channel.recv_exchange(call, parcel.rank, self.seq)
        if not delivery.suits(parcel, value):
            raise self.channel.exchange_mismatch(
                parcel.rank, f"{delivery.expects(parcel)} in {self.label}", header, "arrays"
            )
        self._note(parcel.rank, header)
        delivery.unpack(parcel, value)

    def _send(self, parcel: Parcel, xs: Sequence[Array], form: Form | None, call: Call) -> None:
        if form is None:
            frame = wire.encode(None, call, self.seq)
        else:
            frame = wire.encode_pieces(
                gather_pieces(parcel, xs, form), (*form.lead, parcel.cells), call, self.seq
            )
        self.channel.send_exchange(frame, parcel.rank, self.seq)

    def _note(self, rank: int, header: Header) -> None:
        """A rank that wants a gradient gets one in backward or, if there will be none here, word of
        that at once.
        """
        if self.order:
            self.check_pass(header, rank)
        if header.flags & wire.REFUSED:
            # it is the list of the node whose gradient this is: that asks there no more
            self.sources.remove(rank)
        if header.wants and self.recording:
            self.asked_by.append(rank)
        elif header.wants:
            back = self.comm.channel(self.order + 1)
            call = Call(self.op, self.site, root=self.plan.adjoint.fingerprint, order=back.order)
            back.send_exchange(wire.encode_refusal(call, self.seq), rank, self.seq)


class Exchange(Carrier):
    """Carry a plan out. Adjoint: the plan's adjoint, between those who said that they want a
    gradient.
    """

    def __init__(
        self, comm: Communicator, plan: Plan, fill: float = 0, of: Exchange | None = None
    ) -> None:
        super().__init__(comm, plan, of)
        self.fill = fill  # what wanted elements are to which nothing comes
        self.infinite = not isfinite(fill)
        self.keeps: bool = of is None or of.wants  # whether this rank's own cells are asked for
        self.wants: bool = False  # a gradient of what this rank has

    def steps(self, *xs: Any) -> Steps[Any]:
        form, call = self._give(xs)
        self.wants, keeps = call.wants, self.keeps and form is not None
        delivery = Delivery(
            self.plan.want[self.comm.rank], self.route, form, self.fill, aligned=self.of is None
        )
        for parcel in delivery.in_order():
            if parcel.rank == self.comm.rank:
                delivery.put(
                    parcel, gather_pieces(parcel, xs, form) if keeps and form is not None else None
                )
            else:
                yield from self._take(parcel, delivery, call)
        return self.agreed(
            delivery.arrays(always=keeps or self.order == 0), self.wants or bool(self.asked_by)
        )

    def backward(self, *gys: Any) -> Any:
        return self.adjoint(Exchange(self.comm, self.plan.adjoint, of=self), *gys)[
            : len(self.inputs)
        ]


class Give(Carrier):
    """The first half of an exchange: what others want is sent. Its outputs are the rank's arrays as
    they are or, if ``own``, what it wants with nothing in it but its own cells. Adjoint: Take.
    """

    def __init__(self, comm: Communicator, plan: Plan, own: bool, of: Take | None = None) -> None:
        super().__init__(comm, plan, of)
        self.own = own

    def forward(self, *xs: Any) -> Any:
        form, _ = self._give(xs)
        if not self.own:
            return xs
        delivery = Delivery(self.plan.want[self.comm.rank], self.route, form)
        if form is not None:
            delivery.put(self.route.own, gather_pieces(self.route.own, xs, form))
        for parcel in self.route.receives:
            delivery.put(parcel, None)
        return delivery.arrays(always=form is not None)

    def backward(self, *gys: Any) -> Any:
        return self.adjoint(Take(self.comm, self.plan.adjoint, self.own, of=self), *gys)[
            : len(self.inputs)
        ]


class Take(Carrier):
    """The second half: what others gave is put to the rank's ``own`` cells, or on top of its
    inputs. Adjoint: Give.
    """

    def __init__(
        self, comm: Communicator, plan: Plan, own: bool, of: Give | None = None, fill: float = 0
    ) -> None:
        super().__init__(comm, plan, of)
        self.own = own
        self.fill = fill
        self.infinite = not isfinite(fill)

    def after(self, give: Give) -> Take:
        """Say which exchange it ends."""
        self.seq = give.seq
        return self

    def steps(self, *xs: Any) -> Steps[Any]:
        call = self.call(self.plan.fingerprint)
        plan = self.plan
        rank = self.comm.rank
        form = form_of((plan.have if self.own else plan.want)[rank], xs, self.label)
        delivery = Delivery(plan.want[rank], self.route, form, self.fill, () if self.own else xs)
        for parcel in delivery.in_order():
            if parcel.rank != rank:
                yield from self._take(parcel, delivery, call)
            elif self.own or form is None:
                delivery.put(parcel, None if form is None else gather_pieces(parcel, xs, form))
        always = self.order == 0 or form is not None
        return self.agreed(delivery.arrays(always), call.wants or bool(self.asked_by))

    def backward(self, *gys: Any) -> Any:
        return self.adjoint(Give(self.comm, self.plan.adjoint, self.own, of=self), *gys)[
            : len(self.inputs)
        ]


def exchange(comm: Communicator, x: Any, plan: Plan, fill: float = 0) -> Any:
    """Carry out a plan: each rank gets the cells that it wants, each of them the sum over the ranks
    that have it.

    Halos, re-partitions and every collective that adds or copies are plans: see :mod:`mnpar.plans`.
    Axes that the arrays have before those of the plan (batch, channels) go along whole.
    ``comm.traffic`` counts messages and bytes.

    Args:
        comm: all its ranks call this, with equal plans.
        x: the Variable or array that this rank has, its last axes of the plan's shape; a tuple of
            them if the plan gives this rank a sequence of boxes. None on a rank that has nothing.
        plan: who has and who wants what.
        fill: what those elements are to which nothing comes: padding, and cells that nobody has.

    Returns:
        What this rank wants: a Variable, or a tuple of them if the plan says a sequence of boxes.

    Raises:
        ValueError: the plan is for another number of ranks, or ``x`` has not the form that it says.
        MismatchError: two ranks have different plans, dtypes or leading axes; on both.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> from mnpar.plans import Box, Plan
        >>> plan = Plan(
        ...     have=[Box((0,), (3,)), Box((3,), (5,))], want=[Box((0,), (4,)), Box((2,), (5,))]
        ... )
        >>> def program(comm):
        ...     x = mnpar.Variable(np.arange(5.0)[:3] if comm.rank == 0 else np.arange(5.0)[3:])
        ...     y = F.exchange(comm, x, plan)
        ...     F.sum(y).backward()
        ...     return y.array, x.grad
        >>> mnpar.run(
        ...     program, ranks=2
        ... )  # each rank wants one cell of the other's, whose gradient comes back
        [(array([0., 1., 2., 3.]), array([1., 1., 2.])), (array([2., 3., 4.]), array([2., 1.]))]
    """
    ys = Exchange(comm, plan, fill).apply(_arrays(comm, plan, x))
    return ys if isinstance(plan.want[comm.rank], tuple) else ys[0]


def iexchange(comm: Communicator, x: Any, plan: Plan, fill: float = 0) -> Any:
    """:func:`exchange`, but waits for other ranks' cells only where the result is first used;
    compute in between.

    In backward it is the same: the gradients for others leave where the result was first used, and
    those from others are waited for where this was called.

    Args:
        comm, x, plan, fill: as in :func:`exchange`.

    Returns:
        A :class:`mnpar.Future`, or a tuple of them.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> from mnpar.plans import Plan, blocks, everywhere
        >>> def program(comm):
        ...     x = mnpar.Variable(np.arange(2.0) + 2 * comm.rank)
        ...     whole = F.iexchange(comm, x, Plan(blocks((4,), (2,)), everywhere((4,), 2)))
        ...     mine = F.sum(x * x)  # meanwhile
        ...     (mine * F.sum(whole)).backward()
        ...     return x.grad.tolist()
        >>> mnpar.run(program, ranks=2)  # loss (1 + 13)·6; its derivative by cell i is 2·i·6 + 14
        [[14.0, 26.0], [38.0, 50.0]]
    """
    give = Give(comm, plan, own=False)
    xs = give.apply(_arrays(comm, plan, x))
    results = Take(comm, plan, own=True, fill=fill).after(give).begin(*xs)
    want = plan.want[comm.rank]
    futures = tuple([Future(results, i) for i in range(len(several(want)))])
    return futures if isinstance(want, tuple) else futures[0]


def _arrays(comm: Communicator, plan: Plan, x: Any) -> tuple[Any, ...]:
    """A rank's arrays; there may be none if the plan gives it no cells."""
    rank = comm.rank
    if plan.size != comm.size:
        raise ValueError(
            f"rank {rank}: a plan of {plan.size} ranks does not suit a communicator of {comm.size}"
        )
    have = plan.have[rank]
    layouts = several(plan.have[rank])
    if x is None and all([0 in layout.shape for layout in layouts]):
        return ()
    xs = tuple(x) if isinstance(have, tuple) and isinstance(x, Sequence) else (x,)
    if len(xs) != len(layouts) or any([x is None for x in xs]):
        shapes = ", ".join([str(layout.shape) for layout in layouts])
        raise ValueError(
            f"rank {rank}: the plan says that this rank has {len(layouts)} arrays ({shapes}), "
            f"but {len(xs)} came"
        )
    return xs


def repartition(comm: Communicator, x: Any, have: Sequence[Any], want: Sequence[Any]) -> Variable:
    """Divide a global array in another way: rows to columns, columns to blocks, blocks to whole
    arrays, or back.

    Cells that several ranks have are copies: each wanted cell comes from one of them, the rank
    itself if it has it. So from whole arrays to parts nothing is sent, and backward gives each rank
    the gradient of the part that was taken from it.

    Args:
        comm: all its ranks call this.
        x: the part of this rank, of the shape of ``have[rank]``; axes before those of the boxes go
            along whole.
        have, want: for each rank its box before and after: :func:`mnpar.plans.blocks` and
            :func:`mnpar.plans.everywhere` make the usual ones.

    Returns:
        The new part of this rank.

    Raises:
        ValueError: nobody has some of what this rank wants; or as :func:`exchange`.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> from mnpar.plans import blocks
        >>> rows, columns = blocks((2, 3), (2, 1)), blocks((2, 3), (1, 2))
        >>> def program(comm):
        ...     return F.repartition(
        ...         comm, np.arange(3.0)[None] + 3 * comm.rank, rows, columns
        ...     ).array.tolist()
        >>> mnpar.run(program, ranks=2)
        [[[0.0, 1.0], [3.0, 4.0]], [[2.0], [5.0]]]
    """
    require_communicator(comm, "repartition(comm, x, have, want)")
    plan = plan_of_copies(_hashable(have), _hashable(want))
    if plan.size == comm.size and not all(plan.route(comm.rank).full):
        raise ValueError(
            f"rank {comm.rank}: no rank has some of the cells of {want[comm.rank]}, which this "
            "rank wants"
        )
    return exchange(comm, x, plan)  # type: ignore[no-any-return]


def _hashable(entries: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([tuple(entry) if isinstance(entry, list) else entry for entry in entries])
