"""Forget what a function computes on the way, and compute it again when backward needs it:
activation checkpointing.

The function is run once as usual, which shows the parameters that it reads; they become inputs of
the one node that is left in the graph, beside its arguments. Backward runs it again, with the same
random numbers, and walks that graph. So memory is paid for one such function at a time, and
gradients are those of the plain call: of parameters too, of higher orders too.

A message that is sent again has to be received again. So a function may communicate only if all
ranks of a communicator forget it together, as one collective: each of them then runs it again in
backward, whether it has a gradient or not. It begins with a barrier, so that forward would not end
where these repetitions could wait for each other (docs/backward_order.md). Else to communicate
inside is an error, before a message leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from mnpar.autograd.graph import Gradient, VariableNode, tick
from mnpar.autograd.tape import Tape, current_tape
from mnpar.backend import Array
from mnpar.communicators.communicator import ANY_SOURCE, Communicator, require_communicator
from mnpar.communicators.wire import FORGET
from mnpar.configuration import force_backprop_mode, is_recording
from mnpar.function_hook import FunctionHook
from mnpar.function_node import InputGradients
from mnpar.functions.node import GenericFunction
from mnpar.functions.util.no_messages import NoMessages
from mnpar.functions.util.recomputation import Recomputation
from mnpar.variable import Variable, as_variable, grad


class _SameMessages(FunctionHook):
    """Refuses what cannot be repeated even by all ranks together: another message may come first
    the next time.
    """

    def __init__(self) -> None:
        self.name = f"forget {id(self)}"  # they may be nested

    def forward_preprocess(self, function: Any, in_data: tuple[Array | None, ...]) -> None:
        if function.communicates and getattr(function, "source", None) == ANY_SOURCE:
            raise RuntimeError(
                f"forget: {function.label} from ANY_SOURCE may take another rank's message "
                "when it is repeated in backward: "
                "name the rank, or receive before forget, and give what has come as an argument"
            )


_REPEATED = (
    "forget: {label} would have to be repeated in backward, and other ranks do not know of it: let "
    "all ranks that communicate inside say so, forget(func, *xs, comm=comm), or communicate "
    "between two calls of forget"
)


class Entrance(GenericFunction):
    """``y = x``, where an argument enters the function as it is run again: while it is shut, no
    gradient goes behind.
    """

    opaque = True
    shut = True

    def forward(self, x: Array) -> Array:
        return x

    def backward(self, gy: Variable | Array) -> InputGradients:
        return None if self.shut else gy


class Forget(GenericFunction):
    """The node that stands for all those of a function.

    Args:
        run: the function.
        ys: what it returned.
        read: the leaves of the graph that it read, inputs after its arguments.
        recomputation: of the function's forward.
        communicates: all ranks of a communicator run it together, and will again.
    """

    joint_vjp = True

    def __init__(
        self,
        run: Callable[..., Any],
        ys: tuple[Array, ...],
        read: list[VariableNode],
        recomputation: Recomputation,
        communicates: bool,
    ) -> None:
        self.run = run
        self.ys = ys
        self.read = read
        self.recomputation = recomputation
        self.communicates = communicates

    def forward(self, *xs: Array) -> tuple[Array, ...]:
        self.retain_inputs(tuple(range(len(xs) - len(self.read))))
        # a peer may have something to differentiate
        self.differentiable = self.differentiable or self.communicates
        ys, self.ys = self.ys, ()
        return ys

    def backward(self, *gys: Variable | Array | None) -> InputGradients:
        found: list[Any] = self._again(gys) if self.communicates else []

        def gradient(i: int) -> Any:
            if not found:
                found.extend(self._again(gys))
            return found[i]

        return tuple([lambda i=i: gradient(i) for i in range(len(self.inputs))])

    def _again(self, gys: tuple[Any, ...]) -> list[Gradient | None]:
        xs = self.get_retained_inputs()
        record = is_recording()
        tape = Tape()
        entrances = [Entrance() for _ in xs]
        with tape, self._as_before():
            # Variables of its own: backward is to go as far as here, and no further
            trio = zip(xs, self.inputs[: len(xs)], entrances, strict=True)
            inputs = [
                e.apply((x if record else Variable(x, requires_grad=n.requires_grad),))[0]
                for x, n, e in trio
            ]
            ys = _listed(self.run(*inputs))
        seeds = [
            (y, as_variable(gy))
            for y, gy in zip(ys, gys, strict=True)
            if gy is not None and y.requires_grad
        ]
        targets = [*inputs, *[Variable.of(None, node) for node in self.read]]
        with tape, _unheard(self.read):
            found = grad(
                [y for y, _ in seeds],
                targets,
                [gy for _, gy in seeds],
                enable_double_backprop=record,
            )
        for entrance in entrances:
            entrance.shut = False
        # what is recorded, the backward of this one visits
        current_tape().records.extend(tape.records)
        return list(found) if record else [None if g is None else g.array for g in found]

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        with (
            self.recomputation.again(),
            force_backprop_mode(),
            nullcontext() if self.communicates else NoMessages(_REPEATED),
        ):
            yield


@contextmanager
def _unheard(nodes: list[VariableNode]) -> Iterator[None]:
    """Gradients that are parts of others: hooks hear of the whole, later."""
    before = [(node, node.hooks) for node in nodes]
    for node in nodes:
        node.hooks = ()
    try:
        yield
    finally:
        for node, hooks in before:
            node.hooks = hooks


def _listed(ys: Any) -> list[Variable]:
    return [as_variable(y) for y in (ys if isinstance(ys, tuple | list) else (ys,))]


def forget(
    func: Callable[..., Any], *xs: Variable | Array, comm: Communicator | None = None
) -> Any:
    """``func(*xs)`` without keeping what it computes on the way: backward calls it again. Time for
    memory.

    It is twice differentiable, and gradients also reach the parameters of links that ``func``
    calls. The second call sees the random numbers of the first (those of
    :func:`mnpar.random.generator`) and the running values and vectors with which batch
    renormalization and spectral normalization computed, and changes none of these; whatever else
    ``func`` changes, the state of an LSTM for example, it changes twice.

    Args:
        func: takes and returns Variables, one or a tuple. What else it reads are parameters and
            constants; a Variable that was computed is to be an argument.
        xs: its arguments. Of divided ones ``func`` gets and returns divided Variables, all ranks of
            their grid call forget, and ``comm`` may be left out.
        comm: ``func`` communicates, with these ranks and no others, on ``comm`` or on parts of it:
            all of them call forget, as they would a collective, and all repeat the messages in
            backward.

    Returns:
        What ``func`` returns.

    Raises:
        RuntimeError: ``func`` communicates without ``comm``, or receives from ``ANY_SOURCE``.
        ValueError: it reads a Variable that was computed outside and is no argument.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> layer = L.Linear(2, 3)
        >>> y = F.forget(lambda x: F.tanh(layer(x)), np.ones((1, 2), "f4"))
        >>> F.sum(y).backward()
        >>> layer.W.grad.shape
        (3, 2)

        100 steps of time, of which the states after each ten are kept::

            for _ in range(10):
                u = F.forget(ten_steps, u, comm=grid.comm)

    Source:
        Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174.
    """
    if not callable(func):
        raise TypeError(f"forget: func is called, which {type(func).__name__} cannot be")
    variables = [as_variable(x) for x in xs]
    if not is_recording():
        return func(*variables)
    cut = [x.layout for x in variables if x.layout is not None]
    if cut:
        return _of_parts(func, variables, cut[0].grid.comm if comm is None else comm)
    if comm is not None:
        require_communicator(comm, "forget(func, *xs, comm=comm)")
        comm.barrier_of(FORGET)
    recomputation = Recomputation()
    start = tick()
    tape = Tape()
    inputs = [Variable(x.array, requires_grad=x.requires_grad) for x in variables]
    refused = _SameMessages() if comm is not None else NoMessages(_REPEATED)
    with tape, refused, recomputation.forward():
        result = func(*inputs)
    ys = _listed(result)
    sent = [x for function in tape.complete().records for x in function.inputs]
    tape.clear()
    read = _read([y.node for y in ys] + sent, start, inputs)
    arrays = tuple([y.array for y in ys])
    node = Forget(func, arrays, read, recomputation, comm is not None)
    found = node.apply((*variables, *[Variable.of(None, leaf) for leaf in read]))
    return found if isinstance(result, tuple | list) else found[0]


def _of_parts(func: Callable[..., Any], xs: list[Any], comm: Communicator) -> Any:
    """Forget a function of divided Variables: it is one of their parts, and gives parts."""
    layouts: list[Any] = []  # of what it returns
    several = False

    def of_parts(*parts: Variable) -> tuple[Variable, ...]:
        nonlocal several
        pairs = zip(xs, parts, strict=True)
        ys = func(*[part if x.layout is None else x.layout.divided(part) for x, part in pairs])
        several = isinstance(ys, tuple | list)
        listed: list[Any] = _listed(ys)
        layouts[:] = [y.layout for y in listed]
        return tuple([y if y.layout is None else y.part for y in listed])

    parts = [x if x.layout is None else x.part for x in xs]
    found = forget(of_parts, *parts, comm=comm)
    pairs = zip(found, layouts, strict=True)
    ys = tuple([y if layout is None else layout.divided(y) for y, layout in pairs])
    return ys if several else ys[0]


def _read(used: list[VariableNode], start: int, inputs: list[Variable]) -> list[VariableNode]:
    """The leaves, other than its arguments, from which gradients are wanted."""
    stack = used
    seen = {x.node for x in inputs}
    read = []
    while stack:
        node = stack.pop()
        if node in seen or not node.requires_grad:
            continue
        seen.add(node)
        creator = node.creator
        if creator is None:
            read.append(node)
        elif creator.number < start:
            raise ValueError(
                f"forget: func reads what {creator.label} computed outside of it: make that an "
                "argument"
            )
        else:
            stack += creator.inputs
    return read
