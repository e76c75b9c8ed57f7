"""Reverse mode: the graph, the tape of communications, and the one loop that walks both backwards.

A rank's backward visits functions in exactly the reverse of the order in which they ran there (law 3): every function takes
a number from one clock, and a heap pops the largest first. The functions that communicate are also kept on a tape, and each
of them is visited whether a gradient reached it or not (law 4): a peer may be waiting for it. Reversing the order of a forward
that ended cannot deadlock, because sends never block: docs/backward_order.md has the argument.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol, TypeAlias
from weakref import ReferenceType

from mnpar.backend import unscalar
from mnpar.config import recording

Gradient: TypeAlias = Any  # an array; a Variable where the backward is recorded itself (double backprop)

tick = itertools.count(1).__next__  # the clock: numbers grow with time on every rank, be it a process or a thread


class Function(Protocol):
    """What the loop needs of a FunctionNode."""

    number: int
    communicates: bool
    inputs: tuple[VariableNode, ...]
    outputs: tuple[ReferenceType[VariableNode], ...]

    @property
    def label(self) -> str: ...
    def pull(self, gys: list[Gradient], wanted: list[bool], record: bool) -> Iterable[Gradient]: ...


class VariableNode:
    """What the graph knows of a variable: who made it and its gradient, but not its array, which can so be freed early."""

    __slots__ = ("__weakref__", "creator", "dtype", "gradient", "index", "loss_scale", "name", "requires_grad", "shape")

    def __init__(self, requires_grad: bool, shape: tuple[int, ...], dtype: Any) -> None:
        self.requires_grad = requires_grad
        self.shape = shape
        self.dtype = dtype
        self.creator: Function | None = None
        self.index = 0  # which output of its creator it is
        self.gradient: Gradient = None
        self.name: str | None = None
        self.loss_scale: float | None = None

    @property
    def key(self) -> Any:
        """The same for all nodes that stand for the same variable."""
        return self if self.creator is None else (self.creator.number, self.index)


class Tape:
    """The communications that a rank recorded, in the order in which it made them.

    There is always a current one. ``with Tape():`` gives a block of its own, so that several forwards can be under way before
    the first backward (micro-batches); a backward replays the tape that is current where it is called, then empties it.

    Example:
        >>> import numpy as np, mnpar
        >>> tape = mnpar.Tape()
        >>> with tape:
        ...     y = mnpar.Variable(np.ones(1)) * 3
        >>> with tape:
        ...     y.backward()
    """

    LONG = 100_000  # as many communications without a backward are most likely an evaluation that records

    def __init__(self) -> None:
        self.records: list[Function] = []
        self._tokens: list[Token[Tape | None]] = []

    def append(self, function: Function) -> None:
        self.records.append(function)
        if len(self.records) == self.LONG:
            warnings.warn(
                f"{self.LONG} communications were recorded and no backward ran: evaluate under mnpar.no_backprop_mode(), "
                "or call mnpar.backward() on the ranks that have no loss",
                stacklevel=4,
            )

    def __enter__(self) -> Tape:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _current.reset(self._tokens.pop())


_current: ContextVar[Tape | None] = ContextVar("mnpar.tape", default=None)


def current_tape() -> Tape:
    """The tape on which this rank's communications are recorded now."""
    tape = _current.get()
    if tape is None:
        tape = Tape()
        _current.set(tape)
    return tape


class Sums:
    """Adds up the gradients of each variable, in place where the array is its own."""

    def __init__(self, record: bool) -> None:
        self.totals: dict[Any, Gradient] = {}
        self._own: set[Any] | None = None if record else set()  # recorded sums must not change in place

    def add(self, key: Any, g: Gradient) -> None:
        old = self.totals.get(key)
        if old is None:
            self.totals[key] = g
        elif self._own is not None and key in self._own:
            old += g
        else:
            self.totals[key] = unscalar(old + g)
            if self._own is not None:
                self._own.add(key)


def reverse(
    seeds: Sequence[tuple[VariableNode, Gradient]],
    targets: Sequence[VariableNode] | None = None,
    *,
    record: bool = False,
    retain_grad: bool = False,
    retain_tape: bool = False,
) -> dict[Any, Gradient]:
    """Walk the graph backwards from ``seeds``, and the current tape with it.

    Args:
        seeds: variables and the gradients they start from; may be empty on a rank that has no loss.
        targets: compute only what leads to these (None: to every leaf that requires a gradient).
        record: record the backward itself, so that it can be differentiated again.
        retain_grad: leave their gradients on intermediate variables too.
        retain_tape: keep the tape for another backward through the same communications.

    Returns:
        The total gradient of each leaf and each target that was reached, by :attr:`VariableNode.key`.
    """
    tape = current_tape()
    functions = {f.number: f for f in tape.records}
    heap = [-number for number in functions]
    heapq.heapify(heap)
    sums = Sums(record)
    wants = _requires_grad if targets is None else _leads_to(targets, [node for node, _ in seeds], tape.records)
    keep = set() if targets is None else {node.key for node in targets}

    def deliver(node: VariableNode, g: Gradient) -> None:
        creator = node.creator
        if creator is not None and creator.number not in functions:
            if creator.communicates:
                raise RuntimeError(_SPENT.format(creator.label))
            functions[creator.number] = creator
            heapq.heappush(heap, -creator.number)
        sums.add(node.key, g)

    with recording(record):
        for node, seed in seeds:
            deliver(node, seed)
        while heap:
            function = functions[-heapq.heappop(heap)]
            keys = [(function.number, i) for i in range(len(function.outputs))]
            gys = [sums.totals.get(key) if key in keep else sums.totals.pop(key, None) for key in keys]
            if retain_grad:
                _leave(function, gys)
            wanted = [wants(x) for x in function.inputs]
            for x, gx in zip(function.inputs, function.pull(gys, wanted, record), strict=True):
                if gx is not None:
                    deliver(x, gx)
    if not (record or retain_tape):
        tape.records.clear()
    return sums.totals


_SPENT = (
    "backward reached {}, which an earlier backward has replayed already, or which is on another tape: start from all losses at "
    "once with mnpar.backward([loss1, loss2]), keep the tape with retain_tape=True, or give each forward its own `with mnpar.Tape():`"
)


def _requires_grad(node: VariableNode) -> bool:
    return node.requires_grad


def _leave(function: Function, gys: list[Gradient]) -> None:
    """Put the gradients on those outputs that the user still holds."""
    for reference, gy in zip(function.outputs, gys, strict=True):
        node = reference()
        if node is not None:
            node.gradient = gy


def _leads_to(
    targets: Sequence[VariableNode], roots: Sequence[VariableNode], records: Sequence[Function]
) -> Callable[[VariableNode], bool]:
    """Which variables lie on a way from a target, or from a message: what it leads to is for its sender to know."""
    functions = {f.number: f for f in records}
    stack = [f for f in [*records, *(node.creator for node in roots)] if f is not None]
    while stack:
        function = stack.pop()
        functions[function.number] = function
        creators = (x.creator for x in function.inputs)
        stack += [f for f in creators if f is not None and f.number not in functions]
    keys = {node.key for node in targets}
    for _, function in sorted(functions.items()):
        if function.communicates or any(x.key in keys for x in function.inputs):
            keys.update((function.number, i) for i in range(len(function.outputs)))
    return lambda node: node.key in keys
