"""The messages between the stages of a pipeline: which rank, and which tag.

One micro-batch in one stage: forward on a tape of its own, and backward along that tape, at any
later time.

The tape holds what the stage received and sent while it worked on the micro-batch. So many
micro-batches can be under way at once, and a stage may exchange values with any other stage:
backward receives gradients from wherever outputs were sent, and sends gradients to wherever inputs
came from. Skip connections, several inputs and encoders beside decoders need no code of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mnpar.functions import recv, send
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
import copy
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar

import numpy as np

from mnpar import random
from mnpar.autograd.engine import DeferredGradients, run_backward
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.autograd.tape import Tape
from mnpar.configuration import is_recording, recording
from mnpar.function_node import FunctionNode
from mnpar.parallel.pipeline.layers import Stage
from mnpar.variable import as_variable


class StageMessages:
    """The stages of a pipeline in order, and the messages between them.

    Args:
        comm: of the pipeline alone.
        where: the rank of each stage.
        micro_batches: M.
        skips: whether stages compute nothing for a micro-batch without examples.
    """

    def __init__(
        self, comm: Communicator, where: Sequence[int], micro_batches: int, skips: bool = True
    ) -> None:
        self.comm = comm
        self.where = where
        self.M = micro_batches
        self.skips = skips
        # which of its rank's stages
        self._places = [list(where[:stage]).count(rank) for stage, rank in enumerate(where)]
        self._most = 1 + max(self._places)

    def tag(self, source: int, dest: int, micro_batch: int, tag: int) -> int:
        """A tag for each pair of stages and micro-batch, so that messages match in whatever order a
        schedule sends them.
        """
        return (
            (tag * self._most + self._places[source]) * self._most + self._places[dest]
        ) * self.M + micro_batch

    def send(self, value: Any, source: int, dest: int, micro_batch: int, tag: int = 0) -> None:
        """Start sending to a stage: a Variable, a tuple of them, or nothing (None)."""
        self._check(source, dest, source)
        send(
            () if value is None else value,
            self.comm,
            self.where[dest],
            self.tag(source, dest, micro_batch, tag),
        )

    def recv(self, source: int, dest: int, micro_batch: int, tag: int = 0) -> tuple[Variable, ...]:
        """Receive what a stage sent."""
        self._check(source, dest, dest)
        values: tuple[Variable, ...] = recv(
            self.comm,
            self.where[source],
            tag=self.tag(source, dest, micro_batch, tag),
            force_tuple=True,
        )
        return values

    def _check(self, source: int, dest: int, me: int) -> None:
        stages = len(self.where)
        if not 0 <= source < dest < stages:
            other = source + dest - me
            way = (
                f"gives to later stages, not to {other}"
                if me == source
                else f"takes from earlier stages, not from {other}"
            )
            raise ValueError(f"stage {me} of 0 to {stages - 1} {way}")


Seeds = Sequence[tuple[VariableNode, Gradient]]
Collect = Callable[[dict[Any, Gradient]], None]

_NO_EXAMPLE = (
    0,
) * 9  # the shape of what goes through the stages in place of a micro-batch without examples

_here: ContextVar[Visit | None] = ContextVar("mnpar.stage", default=None)


class Visit:
    """A micro-batch in a stage, from its forward to the end of its backward.

    Args:
        messages: between the stages.
        stage, micro_batch: which.
        call: what the stage computes: called with what the stage before returned, and with
        args, kwargs: this rank's own piece of the batch.
    """

    def __init__(
        self,
        messages: StageMessages,
        stage: int,
        micro_batch: int,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.messages, self.stage, self.micro_batch = messages, stage, micro_batch
        self.call, self.args, self.kwargs = call, args, kwargs
        self.tape = Tape()
        self.result: Any = None  # of the last stage

    def forward(self) -> None:
        """Receive the inputs, compute, and send the outputs."""
        token = _here.set(self)
        try:
            with self.tape:
                self._run()
        finally:
            _here.reset(token)

    def _run(self) -> None:
        y = self._compute()
        if self.stage + 1 < len(self.messages.where):
            self.give(y, self.stage + 1)
        elif not _is_no_example(y):
            self.result = y

    def _compute(self) -> Any:
        received = self.take(self.stage - 1) if self.stage else ()
        mine = [*self.args, *self.kwargs.values()]
        if self.messages.skips and (
            (len(received) == 1 and _is_no_example(received[0]))
            or (self.stage == 0 and mine and not any(map(len, mine)))
        ):
            # nothing is computed, here and in the stages to come
            return np.zeros(_NO_EXAMPLE, np.uint8)
        if isinstance(self.call, Stage):
            return self.call.run_stage(received, self.args, self.kwargs)
        return self.call(*received, *self.args, **self.kwargs)

    def give(self, value: Any, stage: int, tag: int = 0) -> None:
        """Send to a stage."""
        self.messages.send(value, self.stage, stage, self.micro_batch, tag)

    def take(self, stage: int, tag: int = 0) -> tuple[Variable, ...]:
        """Receive from a stage."""
        return self.messages.recv(stage, self.stage, self.micro_batch, tag)

    def backward(self, seeds: Seeds, collect: Collect, later: list[DeferredGradients]) -> None:
        """Go back along the tape: what is to be computed for weights goes to ``later``, gradients
        of leaves to ``collect``.
        """
        with self.tape:
            collect(run_backward(seeds, later=later))


class Frugal(Visit):
    """A visit with recomputation: it keeps what it received and nothing else; backward runs the
    stage again, and then back.

    The second run gets what the first one received from a log, and sends nothing. Random numbers
    are the same again; statistics that a link collects in training are collected twice.
    """

    def _run(self) -> None:
        self.log: list[tuple[Variable, ...]] = []  # what was received
        self.given: list[tuple[Any, int, int]] = []  # what is to be sent: value, stage, tag
        self.replayed: list[tuple[Variable, ...]] | None = None
        self.record = is_recording()
        self.state = copy.deepcopy(random.generator().bit_generator.state)
        with recording(False):
            y = self._compute()
        given, self.given = [*self.given, (y, self.stage + 1, 0)], []
        anchor = Variable(np.zeros(()))  # so that it is recorded, whatever the inputs are
        again = _Again(self, [x.array for value, _, _ in given for x in _flat(value)])
        shown = iter(again.apply((*[x for xs in self.log for x in xs], anchor)))
        for value, stage, tag in given:
            value = _like(value, shown)
            if stage < len(self.messages.where):
                super().give(value, stage, tag)
            elif not _is_no_example(value):
                self.result = value

    def give(self, value: Any, stage: int, tag: int = 0) -> None:
        self.given.append((value, stage, tag))

    def take(self, stage: int, tag: int = 0) -> tuple[Variable, ...]:
        if self.replayed is not None:
            return self.replayed.pop(0)
        with recording(self.record):
            self.log.append(super().take(stage, tag))
        return tuple([Variable(x.array, requires_grad=False) for x in self.log[-1]])

    def backward(self, seeds: Seeds, collect: Collect, later: list[DeferredGradients]) -> None:
        self.collect, self.later = collect, later
        super().backward(seeds, collect, later)

    def again(self, gys: Sequence[Gradient]) -> tuple[Gradient, ...]:
        """Run the stage once more, recorded, and back through it: the gradients of what it had
        received.
        """
        entry = _Entry([x.array for some in self.log for x in some])
        rng = random.generator().bit_generator
        state, rng.state = rng.state, self.state
        token = _here.set(self)
        try:
            with recording(True), Tape():
                xs = iter(entry.apply(()))
                self.replayed = [tuple([next(xs) for _ in some]) for some in self.log]
                y = self._compute()
                outputs = [
                    x for value in [*[value for value, _, _ in self.given], y] for x in _flat(value)
                ]
                pairs = [
                    (x.node, g)
                    for x, g in zip(outputs, gys, strict=True)
                    if g is not None and x.requires_grad
                ]
                self.collect(run_backward(pairs, later=self.later))
        finally:
            _here.reset(token)
            rng.state, self.given = state, []
        return entry.gradients


class _Again(FunctionNode):
    """The whole of a stage as one function, whose backward runs the stage again."""

    generic = True
    communicates = True  # it is to be visited in its turn, whatever reaches it

    def __init__(self, visit: Frugal, ys: list[Any]) -> None:
        self.visit, self.ys = visit, ys

    def forward(self, *xs: Any) -> Any:
        ys, self.ys = tuple(self.ys), []
        return ys

    def backward(self, *gys: Any) -> Any:
        return (*self.visit.again(gys), None)


class _Entry(FunctionNode):
    """The function without inputs whose outputs are what a stage that runs again had received; it
    keeps their gradients.
    """

    generic = True
    communicates = True

    def __init__(self, xs: list[Any]) -> None:
        self.xs = xs
        self.gradients: tuple[Gradient, ...] = (None,) * len(xs)

    def forward(self) -> Any:
        self.differentiable = True
        xs, self.xs = tuple(self.xs), []
        return xs

    def backward(self, *gys: Any) -> Any:
        self.gradients = gys
        return ()


def _is_no_example(value: Any) -> bool:
    return getattr(value, "shape", None) == _NO_EXAMPLE


def _flat(value: Any) -> list[Variable]:
    """The Variables of what a stage returns or gives."""
    if value is None:
        return []
    return (
        [as_variable(x) for x in value] if isinstance(value, tuple | list) else [as_variable(value)]
    )


def _like(value: Any, variables: Iterator[Variable]) -> Any:
    """As many of the Variables as the value has, in its structure."""
    if value is None:
        return None
    return (
        tuple([next(variables) for _ in value])
        if isinstance(value, tuple | list)
        else next(variables)
    )


def _visit(what: str, tag: int) -> Visit:
    visit = _here.get()
    if visit is None:
        raise RuntimeError(
            f"{what} is for the forward of a stage, while a Pipeline runs it; elsewhere use "
            "mnpar.functions.send"
        )
    if tag < 0:
        raise ValueError(f"{what}: tags are numbers from 0 on, not {tag}")
    return visit


def send_to_stage(x: Any, stage: int, tag: int = 0) -> None:
    """Called in a stage's forward: give something to a stage that is not the next one (a skip
    connection), or more to that.

    Its gradient comes back from there. What a stage returns goes to the next one anyway.

    Args:
        x: a Variable or array, or a tuple or list of them.
        stage: a later one, which calls :func:`recv_from_stage`.
        tag: from 0 on; tells several messages between two stages apart, though they keep their
            order.

    Raises:
        RuntimeError: no pipeline is running; ValueError: there is no such stage, or the tag is
            below 0.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F
        >>> from mnpar.parallel import Pipeline, recv_from_stage, send_to_stage
        >>> def first(x):
        ...     send_to_stage(x, stage=2)
        ...     return 2 * x
        >>> def last(y):
        ...     return y + recv_from_stage(0)
        >>> def program(comm):
        ...     pipeline = Pipeline(
        ...         comm, [first, F.tanh, last][comm.rank], "gpipe", micro_batches=2
        ...     )
        ...     with mnpar.no_backprop_mode():
        ...         return pipeline(*[np.zeros((4, 1))][comm.rank :])
        >>> mnpar.run(program, ranks=3)[2].shape
        (4, 1)
    """
    _visit("send_to_stage", tag).give(x, stage, tag + 1)


def recv_from_stage(stage: int, tag: int = 0) -> Any:
    """Called in a stage's forward: take what an earlier stage gave by :func:`send_to_stage`.

    Args:
        stage: which; not the one before, whose result is this stage's argument.
        tag: the sender's.

    Returns:
        A Variable, or a tuple of them if several were given.

    Raises:
        RuntimeError: no pipeline is running; ValueError: there is no such stage, or the tag is
            below 0.

    Example:
        See :func:`send_to_stage`.
    """
    values = _visit("recv_from_stage", tag).take(stage, tag + 1)
    return values[0] if len(values) == 1 else values
