"""Non-blocking collectives as two functions: one where the collective starts, one where its result
is first used.

Each phase is a function of its own on the tape, with its own number in time, and each is the
other's adjoint: backward starts the adjoint collective where forward finished the collective,
finishes it where forward started it, and computes in between. That cannot deadlock: forward, every
rank finished after every rank had started (the opening message ensures that), so in the reversed
order of events every rank starts before any rank has to finish (docs/backward_order.md). Ranks
finish collectives in different orders, though, so they start the adjoints in different orders: see
communicators/channel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mnpar.autograd.graph import tick
from mnpar.communicators.channel import AdjointChannel
from mnpar.communicators.collectives import ALLGATHER
from mnpar.communicators.operation import Operation
from mnpar.configuration import is_recording
from mnpar.function_hook import FunctionHook, function_hooks
from mnpar.function_node import FunctionNode
from mnpar.functions.communication import Communication
from mnpar.functions.counting import ask_once, asks_in, judge_once
from mnpar.functions.sameness import question
from mnpar.future import Future, Once, when_used
from mnpar.variable import Variable


class Phase(FunctionNode):
    """The base of both phases.

    Args:
        whole: the collective whose phases they are.
    """

    generic = True
    communicates = True

    def __init__(self, whole: SplitCollective) -> None:
        self.whole = whole
        self.op = whole.what.op

    @property
    def label(self) -> str:
        return self.whole.what.label


class Start(Phase):
    """The first phase: starts the collective with the inputs; it has no outputs."""

    def backward(self) -> Any:
        return self.whole.take_adjoint().finish()[: len(self.inputs)]


class Finish(Phase):
    """The second phase: waits for the results; it has no inputs."""

    def backward(self, *gys: Any) -> Any:
        self.whole.start_adjoint(gys)
        return ()


class SplitCollective:
    """A collective under way.

    Args:
        what: the collective as a function that would wait for it at once; it says what is done, and
            what is the adjoint.
        number: the number of the collective whose adjoint it is; in forward it gets one.
        asked: the number of the question that may be asked before that (``_ask``); in forward it
            gets one.
    """

    def __init__(
        self, what: Communication, number: int | None = None, asked: int | None = None
    ) -> None:
        self.what = what
        what.later, what.adjoint_of = True, number
        self.number, self.asked = number, asked
        self._first, self._second = Start(self), Finish(self)
        self._adjoint: SplitCollective | None = None

    def start(self, inputs: tuple[Any, ...]) -> None:
        """Give the values, and return at once."""
        what, first = self.what, self._first
        self._nodes, given = first.prepare(what.all_there(inputs))
        what.differentiable = first.differentiable
        first.number = tick()
        arrays = tuple(given)
        for hook in self._hooks():
            hook.forward_preprocess(first, arrays)
        self._question = self._ask(arrays)
        if self.number is None:
            self.number = what.channel.next_number
        self._operation = Operation(what.comm.transport, what.steps(*arrays))
        for hook in self._hooks():
            hook.forward_postprocess(first, arrays)

    def _ask(self, arrays: tuple[Any, ...]) -> Operation | None:
        """Ask, in an update that is looked at, whether ranks add up what they have in common
        (sameness.check_once).
        """
        what = self.what
        comm = self.what.comm
        row = ask_once(self.what, *arrays)
        channel = comm.channel(what.order)
        if self.asked is not None:
            channel = AdjointChannel(channel, self.asked)
        elif (
            self.number is not None
        ):  # the adjoint of one that was called where nothing is looked at
            return None
        elif asks_in(comm):  # (the adjoint's question has a number in any case)
            self.asked = channel.next_number if row is not None else channel.next_exchange()
        return (
            None
            if row is None
            else Operation(comm.transport, channel.steps(ALLGATHER, row, question(what, True)))
        )

    def _hooks(self) -> Iterable[FunctionHook]:
        """The function hooks to call: none for an adjoint that is not recorded, which is part of a
        backward.
        """
        return function_hooks().values() if self.what.order == 0 or is_recording() else ()

    def finish(self) -> tuple[Variable, ...]:
        """Wait for the results. Both phases go on the tape only now, when the ranks have said
        whether they want gradients.
        """
        for hook in self._hooks():
            hook.forward_preprocess(self._second, ())
        ys = self._operation.wait()
        if self._question is not None:
            judge_once(self.what, self._question.wait()[0])
        for hook in self._hooks():
            hook.forward_postprocess(self._second, ())
        first, second, nodes = self._first, self._second, self._nodes
        del self._first, self._second, self._nodes  # the phases keep this alive, and not the arrays
        del self._operation, self._question
        first.differentiable = second.differentiable = self.what.differentiable
        first.connect(nodes, [], ())
        second.behind = self.what.inputs = first.inputs
        return second.connect([], [], ys)

    def start_adjoint(self, gys: tuple[Any, ...]) -> None:
        """Start the adjoint."""
        self._adjoint = SplitCollective(self.what.mirror(), self.number, self.asked)
        self._adjoint.start(self.what.given(gys))

    def take_adjoint(self) -> SplitCollective:
        """The adjoint that was started."""
        adjoint, self._adjoint = self._adjoint, None
        assert adjoint is not None, f"{self.what.label} was visited by half"
        return adjoint


def started(
    what: Communication, inputs: tuple[Any, ...], after: Callable[[tuple[Variable, ...]], Any]
) -> Once:
    """Start a collective whose results become those of ``after``, where they are first used."""
    collective = SplitCollective(what)
    collective.start(inputs)

    def finish() -> tuple[Variable, ...]:
        result = after(collective.finish())
        return result if isinstance(result, tuple) else (result,)

    return when_used(finish)


def later(
    what: Communication, inputs: tuple[Any, ...], after: Callable[[tuple[Variable, ...]], Any]
) -> Future:
    """The one result of a collective that is waited for later."""
    return Future(started(what, inputs, after))


def several_later(what: Communication, inputs: tuple[Any, ...]) -> tuple[Future, ...]:
    """A result from each rank."""
    results = started(what, inputs, lambda ys: ys)
    return tuple([Future(results, rank) for rank in range(what.comm.size)])
