"""The two ways to run a collective: wait for it at once (:func:`blocking`), or start it now and
wait where its results are first used (:func:`later`).

A collective that is awaited later is two functions on the tape, one where it starts and one where
its result is first used. Each has its own number in time, and each is the other's adjoint: backward
starts the adjoint collective where forward finished the collective, finishes it where forward
started it, and computes in between. That cannot deadlock: forward, every rank finished after every
rank had started (the exchange in which calls are matched ensures that), so in the reversed order of
events every rank starts before any rank has to finish (docs/backward_order.md). Ranks finish
collectives in different orders, though, so they start the adjoints in different orders: see
communicators/channel.py.

All ranks start all collectives, blocking and non-blocking ones, in the same order; they use the
results in any order, or not at all. A rank that does not use a result takes part in its backward
all the same (law 4).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeAlias, TypeVar

from mnpar.autograd.graph import tick
from mnpar.communicators.channel import AdjointChannel
from mnpar.communicators.collectives import ALLGATHER
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.operation import Operation
from mnpar.communicators.twins import present
from mnpar.configuration import is_recording
from mnpar.function_hook import FunctionHook, function_hooks
from mnpar.functions.communication.base import (
    Communication,
    CommunicationHook,
    communication_hook,
)
from mnpar.functions.communication.future import Future, when_used
from mnpar.functions.node import GenericFunction
from mnpar.hints import check_keywords
from mnpar.variable import Variable

P = ParamSpec("P")
R = TypeVar("R")
# A collective that is ready to run, its inputs, and the function from its outputs to the result.
Prepared: TypeAlias = tuple[Communication, tuple[Any, ...], Callable[[tuple[Variable, ...]], R]]


def first(ys: tuple[Variable, ...]) -> Variable:
    """Return the only output."""
    return ys[0]


def every(ys: tuple[Variable, ...]) -> tuple[Variable, ...]:
    """Return all outputs, one from each rank."""
    return ys


def blocking(prepare: Callable[P, Prepared[R]]) -> Callable[P, R]:
    """Make the function that runs what ``prepare`` has prepared, and waits for it."""

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            collective, inputs, result = prepare(*args, **kwargs)
        except TypeError:
            check_keywords(name, inspect.signature(prepare), kwargs)
            raise
        return result(collective.apply(inputs))

    name = prepare.__name__
    returns = prepare.__annotations__["return"].removeprefix("Prepared[").removesuffix("]")
    present(run, prepare, name, returns, prepare.__doc__)
    run.__dict__.update(prepare=prepare, tells_keywords=True)
    return run


_NON_BLOCKING = """Start :func:`{name}`, and wait for it only where its result is first used.

Each Variable of the result is a :class:`mnpar.Future`. Backward visits it even if nobody uses it.
What is given must not be changed in place before the result has been used; errors that need the
other ranks to be found are raised there.

"""


def later(function: Callable[P, R]) -> Callable[P, R]:
    """Make the non-blocking twin of a :func:`blocking` function."""
    name = function.__name__
    prepare: Callable[P, Prepared[Any]] = function.__dict__["prepare"]

    def start(*args: P.args, **kwargs: P.kwargs) -> Any:
        if args:
            require_communicator(args[0], f"i{name}(comm, …)")
        try:
            what, inputs, result = prepare(*args, **kwargs)
        except TypeError:
            check_keywords(f"i{name}", inspect.signature(prepare), kwargs)
            raise
        collective = SplitCollective(what)
        collective.start(inputs)

        def finish() -> tuple[Variable, ...]:
            results = result(collective.finish())
            return results if isinstance(results, tuple) else (results,)

        results = when_used(finish)
        if result is every:
            return tuple([Future(results, rank) for rank in range(what.comm.size)])
        return Future(results)

    _, _, details = inspect.cleandoc(prepare.__doc__ or "").partition("Args:")
    doc = _NON_BLOCKING.format(name=name) + "Args:" + re.sub(rf"F\.{name}\b", f"F.i{name}", details)
    present(start, prepare, f"i{name}", function.__annotations__["return"], doc)
    start.__dict__["tells_keywords"] = True
    return start


class Phase(GenericFunction):
    """The base of both phases.

    Args:
        whole: the collective whose phases they are.
    """

    communicates = True

    def __init__(self, whole: SplitCollective) -> None:
        self.whole = whole
        self.comm, self.op, self.site = whole.what.comm, whole.what.op, whole.what.site

    @property
    def label(self) -> str:
        return self.whole.what.label


class Start(Phase):
    """The first phase: starts the collective with the inputs; it has no outputs."""

    def backward(self) -> Any:
        return self.whole.finish_adjoint()[: len(self.inputs)]


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
        # of the outputs, kept for the hook that compares them with those of the inputs
        self._gradients: tuple[Any, ...] = ()

    def start(self, inputs: tuple[Any, ...]) -> None:
        """Give the values, and return at once."""
        what, first = self.what, self._first
        self._nodes, given = first.prepare(what.all_there(inputs))
        what.differentiable = first.differentiable
        first.number = tick()
        arrays = tuple(given)
        what.check_finite(arrays)
        for hook in self._hooks():
            hook.forward_preprocess(first, arrays)
        self._question = self._ask(arrays)
        if self.number is None:
            self.number = what.channel.next_number
        self._operation = Operation(what.comm.transport, what.steps(*arrays))
        for hook in self._hooks():
            hook.forward_postprocess(first, arrays)

    def _ask(self, arrays: tuple[Any, ...]) -> tuple[CommunicationHook, Operation] | None:
        """Start the question of the hook, if it has one, about what the ranks add up."""
        hook = communication_hook()
        if hook is None:
            return None
        what = self.what
        comm = self.what.comm
        question = hook.question(what, arrays)
        channel = comm.channel(what.order)
        if self.asked is not None:
            channel = AdjointChannel(channel, self.asked)
        elif self.number is not None:
            # the adjoint of one that was called where nothing is looked at
            return None
        elif hook.asks(comm):  # (the adjoint's question has a number in any case)
            self.asked = channel.next_number if question is not None else channel.take_number()
        return (
            None
            if question is None
            else (hook, Operation(comm.transport, channel.steps(ALLGATHER, *question)))
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
            asking, answers = self._question
            asking.judge(self.what, answers.wait()[0])
        for hook in self._hooks():
            hook.forward_postprocess(self._second, ())
        first, second, nodes = self._first, self._second, self._nodes
        del self._first, self._second, self._nodes  # the phases keep this alive, and not the arrays
        del self._operation, self._question
        first.differentiable = second.differentiable = self.what.differentiable
        first.connect(nodes, [], ())
        second.extra_inputs = self.what.inputs = first.inputs
        return second.connect([], [], ys)

    def start_adjoint(self, gys: tuple[Any, ...]) -> None:
        """Start the adjoint."""
        given = self.what.given(gys)
        self._gradients = given if self.what.compare is not None else ()
        self._adjoint = SplitCollective(self.what.mirror(), self.number, self.asked)
        self._adjoint.start(given)

    def finish_adjoint(self) -> tuple[Variable, ...]:
        """Finish the adjoint that was started; return the gradients of the inputs."""
        adjoint, self._adjoint = self._adjoint, None
        assert adjoint is not None, f"{self.what.label} was visited by half"
        gxs = adjoint.finish()
        if self.what.compare is not None:
            self.what.compare(self._gradients, tuple([gx.array for gx in gxs]))
            self._gradients = ()
        return gxs
