"""The graph, as data: functions know the nodes they read, nodes know the function that made them,
nobody knows an array.

Questions about the whole graph that backward asks: which variables depend on others, and what
reads a leaf first.

The gradients of one backward: added up for each variable, until the function that made it is
visited.

Functions are visited in the reverse of their order (law 3), those that communicate in any case (law
4), others when a gradient has reached them; by then all gradients of their outputs are there.

The gradient of a leaf is *final* once the earliest function that reads the leaf has been visited: a
hook may then use it, for instance to start its allreduce, while backward goes on. A walk over the
graph finds that function; it takes place only if a variable with hooks gets a gradient.

Reverse mode: the one loop that walks the graph and the tape of communications backwards.

A rank's backward visits functions in exactly the reverse of the order in which they ran there (law
3): every function takes a number from one clock, and the largest comes first (autograd/engine.py).
The functions that communicate are also kept on a tape, and each of them is visited whether a
gradient reached it or not (law 4): a peer may be waiting for it. Reversing the order of a forward
that ended cannot deadlock, because sends never block: docs/backward_order.md has the argument.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple

from mnpar.autograd.accumulate import copy_gradient
from mnpar.autograd.graph import Function, Gradient, VariableNode
from mnpar.autograd.tape import current_tape
from mnpar.backend import HALVES, add_gradients, cast_gradient, wrap_scalar
from mnpar.configuration import recording
from mnpar.function_hook import around_vjp, function_hooks


class DeferredGradients(NamedTuple):
    """Gradients of leaves (weights) that are computed later, by ``function.vjp(gys, leaves, False,
    add_gradient)``.
    """

    function: Function
    gys: list[Gradient]
    leaves: list[bool]  # which of the inputs


_creator = attrgetter("creator")


def defer_leaves(
    function: Function, gys: list[Gradient], wanted: list[bool], later: list[DeferredGradients]
) -> list[bool]:
    """Append the gradients of a function's leaves to ``later``; returns which of the inputs'
    gradients are still wanted now.

    Functions that communicate are not put off, nor those that compute all their gradients at once.
    """
    if function.communicates or function.joint_vjp or None not in map(_creator, function.inputs):
        return wanted
    leaves = [want and x.creator is None for x, want in zip(function.inputs, wanted, strict=True)]
    if True not in leaves:
        return wanted
    later.append(DeferredGradients(function, gys, leaves))
    return [want and not leaf for want, leaf in zip(wanted, leaves, strict=True)]


def depends_on(
    targets: Sequence[VariableNode], roots: Sequence[VariableNode], records: Sequence[Function]
) -> Callable[[VariableNode], bool]:
    """A predicate: does a variable depend on a target, or on a communication (only its peers know
    what that depends on)?

    A communication that is not to be visited (another tape's) counts only where targets do not hide
    it: it is an error then. It does not count if it took place before there was any target, or if
    it has heard of nobody.
    """
    first = min([x.index if x.creator is None else x.creator.number for x in targets], default=0)
    visited = {f.number: f for f in records}
    keys = {node.key for node in targets}
    functions = visited | _reached([*roots, *(x for f in records for x in f.inputs)])
    others = [
        n
        for n, f in functions.items()
        if f.communicates and n > first and n not in visited and not f.silent_forward
    ]
    apply_hooks = visited.keys() | (_reached(roots, keys).keys() & set(others) if others else set())
    for number, function in sorted(functions.items()):
        if number in apply_hooks or any(x.key in keys for x in function.inputs):
            keys.update((number, i) for i in range(len(function.outputs)))
    return lambda node: node.key in keys


def _reached(roots: Sequence[VariableNode], stops: Collection[Any] = ()) -> dict[int, Function]:
    """The functions that computed ``roots``, by number; the search does not go on behind nodes with
    a key in ``stops``.
    """
    functions: dict[int, Function] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        function = node.creator
        if function is not None and function.number not in functions and node.key not in stops:
            functions[function.number] = function
            stack += function.inputs
    return functions


def unchain(root: VariableNode) -> None:
    """Detach a variable and all that it was computed from; not communications on a tape, which
    backward has still to visit.
    """
    stack = [root.creator]
    while stack:
        function = stack.pop()
        if function is not None and not function.on_tape:
            stack += [x.creator for x in (*function.inputs, *function.extra_inputs)]
            for output in filter(None, [reference() for reference in function.outputs]):
                output.creator = None


def first_uses(functions: dict[int, Function]) -> dict[VariableNode, tuple[int, int]]:
    """For each leaf with hooks, the number of the function that read it first, and which of its
    inputs the leaf is.
    """
    stack = list(functions.values())
    seen = set(functions)
    readers: dict[VariableNode, tuple[int, int]] = {}
    while stack:
        function = stack.pop()
        for i, x in enumerate(function.inputs):
            if x.creator is None:
                if x.hooks:
                    readers[x] = min(readers.get(x, (function.number, i)), (function.number, i))
            elif x.creator.number not in seen:
                seen.add(x.creator.number)
                stack.append(x.creator)
    return readers


class GradientSums:
    """The sum of each variable's gradients, added up in place where the array belongs to the sum
    alone.

    Args:
        record: the sums are Variables, and must not change in place.
        records: the communications, visited whether a gradient reaches them or not.
        stays: keys of intermediate variables whose gradients are to stay in ``totals``, where those
            of leaves stay anyway.
        keep: called with a leaf that has hooks and its gradient as soon as that is final; None: it
            stays in ``totals``.
        parts: this backward computes only a part of each leaf's gradient: leaves' hooks are not
            called here.
    """

    def __init__(
        self,
        record: bool,
        records: Iterable[Function],
        stays: set[Any],
        keep: Callable[[VariableNode, Gradient], None] | None,
        parts: bool = False,
    ) -> None:
        self.totals: dict[Any, Gradient] = {}  # by key
        self._functions: dict[int, Function] = {}  # all that were or will be visited, by number
        self._waiting: dict[
            int, list[Gradient]
        ] = {}  # the gradients so far of the outputs of functions to be visited
        self._heap: list[
            int
        ] = []  # the numbers of these functions, negative, so that the latest one comes first
        # whose sum may change in place; halves' in 32 bits
        self._own: dict[VariableNode, Any] | None = None if record else {}
        self._wide: dict[
            int, list[VariableNode]
        ] = {}  # outputs with such sums, by the number of their function
        self._stays, self._keep, self._parts = stays, keep, parts
        self._heard: dict[
            Any, VariableNode
        ] = {}  # variables with hooks that functions made, by key
        self._awaited: list[
            tuple[int, int, VariableNode]
        ] = []  # leaves with hooks, in the order of their earliest readers
        self._readers: dict[VariableNode, tuple[int, int]] | None = None
        for function in records:
            self._expect(function)

    def start(self, seeds: Iterable[tuple[VariableNode, Gradient]]) -> None:
        """Add what backward starts from, in the dtypes of the variables, as all gradients are:
        ranks exchange them.
        """
        for node, g in seeds:
            self.add(node, g if g.dtype is node.dtype else cast_gradient(g, node.dtype))

    def add(self, node: VariableNode, g: Gradient) -> None:
        """Add a gradient to the sum of a variable's gradients."""
        creator, own = node.creator, self._own
        sums: Any = self.totals
        place: Any = node
        if creator is None:
            old = sums.get(node)
        else:
            sums, place = self._waiting.get(creator.number), node.index
            if sums is None:  # no gradient has come to this function yet
                if not creator.communicates:
                    sums = self._expect(creator)
                elif (
                    node.key in self._stays
                ):  # it is a target, and backward stops here: the communication is another tape's
                    sums, place = self.totals, node.key
                    sums.setdefault(place)
                else:
                    raise RuntimeError(_SPENT.format(creator.label))
            old = sums[place]
        if old is None:
            sums[place] = g
        elif own is None:
            sums[place] = add_gradients(old, g)
        elif node in own:
            if own[node] is None:
                old += g
            else:
                self._widen(node, old, g)
        else:
            own[node] = () if g.dtype.char in HALVES else None
            if node.grad_slot is not None and node.grad_slot.holds(old):
                old += g
            else:
                sums[place] = add_gradients(old, g)
        if node.hooks:
            self._listen(node, old is None)

    def _widen(self, node: VariableNode, old: Any, g: Any) -> None:
        """Add a half's third gradient, or a later one, to the sum in 32 bits, and have that in the
        array.
        """
        assert self._own is not None
        wide = self._own[node]
        if type(wide) is tuple:
            self._own[node] = wide = old.astype("f4")
            if node.creator is not None:
                self._wide.setdefault(node.creator.number, []).append(node)
        wide += g
        old[...] = wide

    def _expect(self, function: Function) -> list[Gradient]:
        """Enter a function that will be visited; returns the list for the gradients of its
        outputs.
        """
        number = function.number
        self._functions[number] = function
        heappush(self._heap, -number)
        gys = self._waiting[number] = [None] * len(function.outputs)
        return gys

    def __iter__(self) -> Iterator[tuple[Function, list[Gradient]]]:
        """The functions in the order in which they are visited, each with the gradients of its
        outputs.
        """
        while self._heap:
            number = -heappop(self._heap)
            if self._awaited:
                self._passed(number + 1)
            gys = self._waiting.pop(number)
            if self._wide and self._own is not None:
                for node in self._wide.pop(number, ()):
                    del self._own[node]
            if self._heard or self._stays:
                for i, g in enumerate(gys):
                    if g is not None:
                        self._known(gys, i, (number, i))
            yield self._functions[number], gys
        self._passed(0)

    def _known(self, gys: list[Gradient], i: int, key: Any) -> None:
        """The gradient of output i of a function is complete: call the hooks, and keep the gradient
        of a target.
        """
        if key in self._heard:
            gys[i] = apply_hooks(self._heard[key], gys[i])
        if key in self._stays:
            self.totals[key] = gys[i]

    def _listen(self, node: VariableNode, first: bool) -> None:
        if node.creator is not None:
            self._heard[node.key] = node
        elif first and not self._parts:
            if self._readers is None:
                self._readers = first_uses(self._functions)
            number, place = self._readers.get(node, (0, 0))  # 0: backward started from it
            insort(self._awaited, (number, place, node), key=lambda entry: entry[:2])

    def _passed(self, number: int) -> None:
        """All functions from this number on were visited: leaves that no earlier function reads are
        final.
        """
        while self._awaited and self._awaited[-1][0] >= number:
            node = self._awaited.pop()[2]
            g = apply_hooks(node, self.totals[node])
            if self._keep is None:
                self.totals[node] = g
            else:
                del self.totals[node]
                self._keep(node, g)
                for hook in node.hooks:
                    if hook.after:
                        hook.function(node)


def apply_hooks(node: VariableNode, g: Gradient) -> Gradient:
    """The gradient after the hooks of its variable, each of which may replace it."""
    for hook in node.hooks:
        if not hook.after:
            new = hook.function(g)
            if new is None:
                continue
            # an array for an array
            new = new if hasattr(g, "node") else wrap_scalar(getattr(new, "array", new))
            if (new.shape, new.dtype) != (g.shape, g.dtype):
                raise ValueError(
                    f"a hook made a {new.shape} {new.dtype} of the {g.shape} {g.dtype} "
                    "gradient that it was given"
                )
            g = new
    return g


def retain_gradients(function: Function, gys: list[Gradient]) -> None:
    """Set ``grad`` of the outputs that are still alive: to copies, because functions hand the same
    array on.
    """
    for node, gy in zip([reference() for reference in function.outputs], gys, strict=True):
        if node is not None:
            node.gradient = None if gy is None else copy_gradient(gy)


_SPENT = (
    "backward reached {}, which was replayed already or is on another tape: start from all "
    "losses at once with "
    "mnpar.backward([loss1, loss2]), keep the tape with retain_tape=True, or give each forward "
    "its own `with mnpar.Tape():`. "
    "What goes on from an earlier step's result, as a state in a time loop, is cut after "
    "backward: state.unchain_backward()"
)


def run_backward(
    seeds: Sequence[tuple[VariableNode, Gradient]],
    targets: Sequence[VariableNode] | None = None,
    *,
    record: bool = False,
    retain_grad: bool = False,
    retain_tape: bool = False,
    keep: Callable[[VariableNode, Gradient], None] | None = None,
    later: list[DeferredGradients] | None = None,
) -> dict[Any, Gradient]:
    """Walk the graph backwards from ``seeds``, and the current tape with it.

    ``seeds`` are variables with the gradients they start from. Only gradients that ``targets`` need
    are computed (None: those of every leaf that requires one). ``record`` makes the backward
    differentiable itself; ``retain_grad`` leaves gradients on the intermediate variables;
    ``retain_tape`` keeps the tape; ``keep`` is called with each leaf that has hooks and its final
    gradient; ``later`` collects gradients of leaves to compute afterwards. Returns all other
    gradients, by ``node.key``.
    """
    tape = current_tape().complete()
    hooks = function_hooks()
    meanwhile = tape.transfers
    stays = {node.key for node in targets or () if node.creator is not None}
    wants = (
        None if targets is None else depends_on(targets, [node for node, _ in seeds], tape.records)
    )
    sums = GradientSums(record, tape.records, stays, keep, later is not None)
    try:
        with recording(record):
            sums.start(seeds)
            for function, gys in sums:
                if retain_grad:
                    retain_gradients(function, gys)
                wanted = []
                for x in function.inputs:
                    wanted.append(x.requires_grad if wants is None else wants(x))
                wanted = wanted if later is None else defer_leaves(function, gys, wanted, later)
                # else none of its gradients would be used
                if function.communicates or True in wanted:
                    (around_vjp(function, hooks) if hooks else function.vjp)(
                        gys, wanted, record, sums.add
                    )
                    for go_on in meanwhile:
                        go_on()
    except BaseException:
        tape.clear()  # some of them were visited, and nobody can visit them again
        raise
    if not (record or retain_tape):
        tape.clear()
    return sums.totals
