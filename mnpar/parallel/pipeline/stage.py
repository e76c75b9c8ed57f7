"""A micro-batch in a stage: its forward, on a tape of its own, and later its backward along that
tape.

The tape holds what the stage received and sent while it worked on the micro-batch. So many
micro-batches can be under way at once, and a stage may exchange values with any other stage:
backward receives gradients from wherever outputs were sent, and sends gradients to wherever inputs
came from. Skip connections, several inputs and encoders beside decoders need no code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.autograd.engine import DeferredGradients, run_backward
from mnpar.autograd.graph import Gradient, VariableNode
from mnpar.autograd.tape import Tape
from mnpar.configuration import is_recording, recording
from mnpar.functions import recv, send
from mnpar.functions.node import GenericFunction
from mnpar.functions.util.recomputation import Recomputation
from mnpar.parallel.pipeline.layers import Stage
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.backend import Array
    from mnpar.communicators.communicator import Communicator

Seeds = Sequence[tuple[VariableNode, Gradient]]
Collect = Callable[[dict[Any, Gradient]], None]

# the shape of what goes through the stages in place of a micro-batch without examples
_NO_EXAMPLE = (0,) * 9


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
        # each stage's number among those of its rank
        self._numbers = [list(where[:stage]).count(rank) for stage, rank in enumerate(where)]
        self._most = 1 + max(self._numbers)

    def tag(self, source: int, dest: int, micro_batch: int, tag: int) -> int:
        """Return a tag for two stages and a micro-batch, so that messages match in whatever order a
        schedule sends them.
        """
        return (
            (tag * self._most + self._numbers[source]) * self._most + self._numbers[dest]
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


class MicroBatch:
    """A micro-batch in a stage, from its forward to the end of its backward.

    Args:
        messages: between the stages.
        stage: its number.
        index: the number of the micro-batch.
        call: what the stage computes: called with what the stage before returned, and with
        args, kwargs: this rank's own part of the micro-batch.

    Attributes:
        result: what the last stage returned; None in other stages.
    """

    def __init__(
        self,
        messages: StageMessages,
        stage: int,
        index: int,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.messages, self.stage, self.index = messages, stage, index
        self.call, self.args, self.kwargs = call, args, kwargs
        self.tape = Tape()
        self.result: Any = None

    def forward(self) -> None:
        """Receive the inputs, compute, and send the outputs."""
        token = _current.set(self)
        try:
            with self.tape:
                self._run()
        finally:
            _current.reset(token)

    def _run(self) -> None:
        y = self._compute()
        if self.stage + 1 < len(self.messages.where):
            self.send(y, self.stage + 1)
        elif not _is_no_example(y):
            self.result = y

    def _compute(self) -> Any:
        received = self.recv(self.stage - 1) if self.stage else ()
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

    def send(self, value: Any, stage: int, tag: int = 0) -> None:
        """Send to a stage."""
        self.messages.send(value, self.stage, stage, self.index, tag)

    def recv(self, stage: int, tag: int = 0) -> tuple[Variable, ...]:
        """Receive from a stage."""
        return self.messages.recv(stage, self.stage, self.index, tag)

    def backward(self, seeds: Seeds, collect: Collect, later: list[DeferredGradients]) -> None:
        """Go back along the tape.

        Args:
            seeds: variables and the gradients that backward starts from.
            collect: called with the gradients of leaves, by their nodes.
            later: gets what is to be computed for weights.
        """
        with self.tape:
            collect(run_backward(seeds, deferred=later))


class RematerializedMicroBatch(MicroBatch):
    """A micro-batch that keeps what the stage received and nothing else; backward runs the stage
    again, and then back.

    The second run gets what the first one received from a log, and sends nothing. Random numbers
    are the same again, and so are running statistics (:class:`Recomputation`).
    """

    def _run(self) -> None:
        self.received: list[tuple[Variable, ...]] = []
        self.sent: list[tuple[Any, int, int]] = []  # what is to be sent: value, stage, tag
        self.replayed: list[tuple[Variable, ...]] | None = None
        self.record = is_recording()
        self.recomputation = Recomputation()
        with recording(False), self.recomputation.forward():
            y = self._compute()
        sent, self.sent = [*self.sent, (y, self.stage + 1, 0)], []
        anchor = Variable(np.zeros(()))  # so that it is recorded, whatever the inputs are
        whole = _Rerun(self, [x.array for value, _, _ in sent for x in _flat(value)])
        outputs = iter(whole.apply((*[x for xs in self.received for x in xs], anchor)))
        for value, stage, tag in sent:
            value = _unflat(value, outputs)
            if stage < len(self.messages.where):
                super().send(value, stage, tag)
            elif not _is_no_example(value):
                self.result = value

    def send(self, value: Any, stage: int, tag: int = 0) -> None:
        self.sent.append((value, stage, tag))

    def recv(self, stage: int, tag: int = 0) -> tuple[Variable, ...]:
        if self.replayed is not None:
            return self.replayed.pop(0)
        with recording(self.record):
            self.received.append(super().recv(stage, tag))
        return tuple([Variable(x.array, requires_grad=False) for x in self.received[-1]])

    def backward(self, seeds: Seeds, collect: Collect, later: list[DeferredGradients]) -> None:
        self.collect, self.later = collect, later
        super().backward(seeds, collect, later)

    def rerun(self, gys: Sequence[Gradient | None]) -> tuple[Gradient | None, ...]:
        """Run the stage once more, recorded, and back through it.

        Args:
            gys: the gradients of all that the stage sent or returned.

        Returns:
            The gradients of all that the stage received.
        """
        entry = _ReceivedInputs([x.array for xs in self.received for x in xs])
        token = _current.set(self)
        try:
            with recording(True), Tape():
                inputs = iter(entry.apply(()))
                self.replayed = [tuple([next(inputs) for _ in xs]) for xs in self.received]
                with self.recomputation.again():
                    y = self._compute()
                outputs = [
                    x for value in [*[value for value, _, _ in self.sent], y] for x in _flat(value)
                ]
                seeds = [
                    (x.node, g)
                    for x, g in zip(outputs, gys, strict=True)
                    if g is not None and x.requires_grad
                ]
                self.collect(run_backward(seeds, deferred=self.later))
        finally:
            _current.reset(token)
            self.sent = []
        return entry.gradients


_current: ContextVar[MicroBatch | None] = ContextVar("mnpar.micro_batch", default=None)


class _Rerun(GenericFunction):
    """The whole of a stage as one function, whose backward runs the stage again."""

    communicates = True  # backward must visit it in its turn, whatever reaches it

    def __init__(self, micro_batch: RematerializedMicroBatch, ys: list[Array]) -> None:
        self.micro_batch, self.ys = micro_batch, ys

    def forward(self, *xs: Array) -> tuple[Array, ...]:
        ys, self.ys = tuple(self.ys), []
        return ys

    def backward(self, *gys: Gradient | None) -> tuple[Gradient | None, ...]:
        return (*self.micro_batch.rerun(gys), None)


class _ReceivedInputs(GenericFunction):
    """The function without inputs whose outputs are what a stage that runs again had received; it
    keeps their gradients.
    """

    communicates = True

    def __init__(self, xs: list[Array]) -> None:
        self.xs = xs
        self.gradients: tuple[Gradient | None, ...] = (None,) * len(xs)

    def forward(self) -> tuple[Array, ...]:
        self.differentiable = True
        xs, self.xs = tuple(self.xs), []
        return xs

    def backward(self, *gys: Gradient | None) -> tuple[Gradient | None, ...]:
        self.gradients = gys
        return ()


def _is_no_example(value: Any) -> bool:
    return getattr(value, "shape", None) == _NO_EXAMPLE


def _flat(value: Any) -> list[Variable]:
    """Return the Variables of what a stage returns or sends."""
    if value is None:
        return []
    return (
        [as_variable(x) for x in value] if isinstance(value, tuple | list) else [as_variable(value)]
    )


def _unflat(value: Any, variables: Iterator[Variable]) -> Any:
    """Return as many of the Variables as a value has, in the structure of the value."""
    if value is None:
        return None
    return (
        tuple([next(variables) for _ in value])
        if isinstance(value, tuple | list)
        else next(variables)
    )


def _current_micro_batch(caller: str, tag: int) -> MicroBatch:
    micro_batch = _current.get()
    if micro_batch is None:
        raise RuntimeError(
            f"{caller} is for the forward of a stage, while a Pipeline runs it; elsewhere use "
            "mnpar.functions.send"
        )
    if tag < 0:
        raise ValueError(f"{caller}: tags are numbers from 0 on, not {tag}")
    return micro_batch


def send_to_stage(x: Any, stage: int, tag: int = 0) -> None:
    """Send something to a later stage, from a stage's forward: a skip connection.

    The gradient comes back from there. A stage's result goes to the next stage anyway.

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
    _current_micro_batch("send_to_stage", tag).send(x, stage, tag + 1)


def recv_from_stage(stage: int, tag: int = 0) -> Any:
    """Receive, in a stage's forward, what an earlier stage sent by :func:`send_to_stage`.

    Args:
        stage: an earlier one. (What the stage before returned is this stage's argument anyway.)
        tag: the sender's.

    Returns:
        A Variable, or a tuple of them if several were given.

    Raises:
        RuntimeError: no pipeline is running; ValueError: there is no such stage, or the tag is
            below 0.

    Example:
        See :func:`send_to_stage`.
    """
    values = _current_micro_batch("recv_from_stage", tag).recv(stage, tag + 1)
    return values[0] if len(values) == 1 else values
