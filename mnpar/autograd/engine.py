"""Reverse mode: one loop visits the functions of the graph, and the communications on the tape,
backwards.

**Time** (law 3). Every function takes a number from one clock when it runs. Backward visits
functions by descending number, which is the reverse of the order in which they ran on this rank.
When a function is visited, all functions that read its outputs have been visited before, so the
gradients of its outputs are complete.

**Reach** (law 4). A function is visited if a gradient has reached it; a communication on the
current tape is visited in any case, because a peer may wait for its gradient. The reverse of a
forward that has ended cannot deadlock, because sends never block: docs/backward_order.md proves it.

The gradient of a leaf is *final* once the function that used the leaf first has been visited. Hooks
of the leaf are called at that moment, while backward goes on, so that they can start an allreduce.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from mnpar.autograd.accumulate import copy_gradient
from mnpar.autograd.arraylike import ArrayLike
from mnpar.autograd.graph import Function, Gradient, VariableNode
from mnpar.autograd.passes import BackwardPass
from mnpar.autograd.tape import current_tape
from mnpar.backend import HALVES, Array, add_gradients, cast_gradient, wrap_scalar
from mnpar.configuration import recording
from mnpar.function_hook import around_vjp, function_hooks
from mnpar.runtime.callsite import call_site

Seed: TypeAlias = tuple[VariableNode, Gradient]
# Called before a backward visits communications, with the seeds, with the communications on the
# tape, and with the arrays of the variables that it starts from: checks.
before_backward: list[
    Callable[[Sequence[Seed], Sequence[Function], Sequence[Array | None]], None]
] = []


def run_backward(
    seeds: Sequence[Seed],
    targets: Sequence[VariableNode] | None = None,
    *,
    record: bool = False,
    retain_grad: bool = False,
    retain_tape: bool = False,
    on_final: Callable[[VariableNode, Gradient], None] | None = None,
    deferred: list[DeferredGradients] | None = None,
    outputs: Sequence[Array | None] = (),
    loss_scale: float | None = None,
) -> dict[Any, Gradient]:
    """Walk the graph backwards from ``seeds``, and the current tape with it.

    Args:
        seeds: variables, with the gradients that backward starts from.
        targets: compute only the gradients that these variables need; None: those of all leaves
            that require one.
        record: make the backward itself differentiable.
        retain_grad: leave gradients on the intermediate variables, too.
        retain_tape: keep the tape for another backward.
        on_final: called with each leaf that has hooks, and its gradient, as soon as that is final.
        deferred: collects gradients of leaves that the caller computes later; hooks of leaves are
            not called then.
        outputs: the arrays of the variables that backward starts from, for checks.
        loss_scale: by which the gradients in ``seeds`` are multiplied; None: 1.

    Returns:
        All other gradients of leaves and of ``targets``, by ``node.key``.
    """
    tape = current_tape().complete()
    transfers = tape.transfers
    hooks = function_hooks()
    is_wanted = None
    retained: set[Any] = set()
    if targets is not None:
        is_wanted = depends_on(targets, [node for node, _ in seeds], tape.records)
        retained = {node.key for node in targets if node.creator is not None}
    walk = BackwardWalk(tape.records, record, retained, on_final, deferred is not None)
    try:
        if tape.records:
            for check in before_backward:
                check(seeds, tape.records, outputs)
            keeps_tape = record or retain_tape
            tape.current_pass = BackwardPass(
                keeps_tape, targets is not None, loss_scale, call_site(2)
            )
        with recording(record):
            walk.start(seeds)
            for function, gys in walk:
                if retain_grad:
                    _leave_gradients(function, gys)
                wanted = []
                for x in function.inputs:
                    wanted.append(x.requires_grad if is_wanted is None else is_wanted(x))
                if deferred is not None:
                    wanted = defer_leaves(function, gys, wanted, deferred)
                # a function none of whose gradients is wanted is passed over, unless peers wait
                if function.communicates or True in wanted:
                    vjp = around_vjp(function, hooks) if hooks else function.vjp
                    vjp(gys, wanted, record, walk.add)
                    for advance in transfers:
                        advance()
    except BaseException:
        tape.clear()  # some communications were visited, and nobody can visit them again
        raise
    tape.current_pass = None
    if not (record or retain_tape):
        tape.clear()
    return walk.totals


class BackwardWalk:
    """The order of one backward: iterate over it for the functions to visit, each with the
    gradients of its outputs, and :meth:`add` the gradients of their inputs.

    Gradients of one variable are summed, in place where the array belongs to the sum alone.

    Args:
        communications: visited whether a gradient reaches them or not.
        record: the sums are Variables, and must not change in place.
        retained: keys of intermediate variables whose gradients are wanted in ``totals``, where
            those of leaves are anyway.
        on_final: called with a leaf that has hooks and its gradient as soon as that is final; None:
            the gradient goes to ``totals``.
        partial: this backward computes only a part of each leaf's gradient, so hooks of leaves are
            not called.
    """

    def __init__(
        self,
        communications: Iterable[Function],
        record: bool = False,
        retained: Collection[Any] = (),
        on_final: Callable[[VariableNode, Gradient], None] | None = None,
        partial: bool = False,
    ) -> None:
        self.totals: dict[Any, Any] = {}  # gradients by key
        self._record = record
        self._retained = retained
        self._on_final = on_final
        self._partial = partial
        # numbers of the functions to be visited, negative, so that the latest comes first
        self._queue: list[int] = []
        # by number: these functions and those that were visited
        self._functions: dict[int, Function] = {}
        # by number of a function to be visited: the gradients of its outputs so far
        self._output_gradients: dict[int, list[Gradient | None]] = {}
        # keys of the sums that are in arrays of their own
        self._in_place: set[Any] = set()
        # by key: float32 sums of gradients of 16 bits, if there are more than two
        self._wide: dict[Any, Array] = {}
        # by key: variables with hooks that functions have computed
        self._hooked: dict[Any, VariableNode] = {}
        # leaves with hooks whose gradients are not final yet, in the order of their first uses
        self._hooked_leaves: list[tuple[int, int, VariableNode]] = []
        self._first_uses: dict[VariableNode, tuple[int, int]] | None = None
        for function in communications:
            self._enqueue(function)

    def start(self, seeds: Iterable[tuple[VariableNode, Gradient]]) -> None:
        """Add the gradients that backward starts from, in the dtypes of their variables, as all
        gradients are: ranks exchange them.
        """
        for node, g in seeds:
            self.add(node, g if g.dtype is node.dtype else cast_gradient(g, node.dtype))

    def __iter__(self) -> Iterator[tuple[Function, list[Gradient | None]]]:
        while self._queue:
            number = -heappop(self._queue)
            if self._hooked_leaves:
                self._finish_leaves(number)
            gys = self._output_gradients.pop(number)
            if self._wide or self._hooked or self._retained:
                self._finish_outputs(number, gys)
            yield self._functions[number], gys
        self._finish_leaves(-1)

    def add(self, node: VariableNode, g: Any) -> None:
        """Add a gradient to the sum of a variable's gradients."""
        creator = node.creator
        sums: Any
        place: Any
        if creator is None:
            sums = self.totals
            place = node
            old = sums.get(node)
        else:
            sums = self._output_gradients.get(creator.number)
            place = node.index
            if sums is None:  # the first gradient that reaches this function
                if creator.communicates:
                    sums, place = self._stop_at(node, creator)
                else:
                    sums = self._enqueue(creator)
            old = sums[place]
        if old is None:
            sums[place] = g
        elif self._record:
            sums[place] = add_gradients(old, g)
        else:
            key = node if creator is None else (creator.number, node.index)
            if key not in self._in_place:
                self._in_place.add(key)
                if node.grad_slot is not None and node.grad_slot.holds(old):
                    old += g
                else:
                    sums[place] = add_gradients(old, g)
            elif g.dtype.char in HALVES:
                self._add_half(key, old, g)
            else:
                old += g
        if node.hooks:
            self._note_hooks(node, old is None)

    def _enqueue(self, function: Function) -> list[Gradient | None]:
        """Enter a function to be visited; return the list for the gradients of its outputs."""
        number = function.number
        self._functions[number] = function
        heappush(self._queue, -number)
        gys: list[Gradient | None] = [None] * len(function.outputs)
        self._output_gradients[number] = gys
        return gys

    def _stop_at(self, node: VariableNode, creator: Function) -> tuple[dict[Any, Any], Any]:
        """Return where to sum the gradients of a target that a communication of another tape has
        computed; raise RuntimeError if the variable is no target.
        """
        if node.key not in self._retained:
            raise RuntimeError(_NOT_ON_TAPE.format(creator.label))
        self.totals.setdefault(node.key, None)
        return self.totals, node.key

    def _add_half(self, key: Any, old: Array, g: Array) -> None:
        """Add a third or later gradient of 16 bits in float32, and copy that sum to the array."""
        wide = self._wide.get(key)
        if wide is None:
            wide = self._wide[key] = old.astype("f4")
        wide += g
        old[...] = wide

    def _note_hooks(self, node: VariableNode, is_first: bool) -> None:
        if node.creator is not None:
            self._hooked[node.key] = node
        elif is_first and not self._partial:
            if self._first_uses is None:
                self._first_uses = first_uses(self._functions)
            number, position = self._first_uses.get(node, (0, 0))  # 0: backward started from it
            insort(self._hooked_leaves, (number, position, node), key=lambda entry: entry[:2])

    def _finish_outputs(self, number: int, gys: list[Gradient | None]) -> None:
        """Call the hooks of a function's outputs, whose gradients are complete, and keep the
        gradients of targets.
        """
        for i, g in enumerate(gys):
            if g is not None:
                key = (number, i)
                self._wide.pop(key, None)
                if key in self._hooked:
                    g = gys[i] = apply_hooks(self._hooked[key], g)
                if key in self._retained:
                    self.totals[key] = g

    def _finish_leaves(self, number: int) -> None:
        """Call the hooks of leaves that were first used after this number: all functions from there
        on were visited.
        """
        while self._hooked_leaves and self._hooked_leaves[-1][0] > number:
            node = self._hooked_leaves.pop()[2]
            g = apply_hooks(node, self.totals[node])
            if self._on_final is None:
                self.totals[node] = g
            else:
                del self.totals[node]
                self._on_final(node, g)
                for hook in node.hooks:
                    if hook.after:
                        hook.function(node)


def apply_hooks(node: VariableNode, g: Gradient) -> Gradient:
    """Return the gradient after the hooks of its variable, each of which may replace it."""
    for hook in node.hooks:
        if not hook.after:
            new = hook.function(g)
            if new is None:
                continue
            if not isinstance(g, ArrayLike):  # an array for an array
                new = wrap_scalar(getattr(new, "array", new))
            if (new.shape, new.dtype) != (g.shape, g.dtype):
                raise ValueError(
                    f"a hook made a {new.shape} {new.dtype} of the {g.shape} {g.dtype} "
                    "gradient that it was given"
                )
            g = new
    return g


def first_uses(functions: dict[int, Function]) -> dict[VariableNode, tuple[int, int]]:
    """Return, for each leaf with hooks, the number of the function that used it first, and which
    input of that function the leaf is.

    Args:
        functions: by number; the search goes on to all that their inputs were computed from.
    """
    stack = list(functions.values())
    seen = set(functions)
    uses: dict[VariableNode, tuple[int, int]] = {}
    while stack:
        function = stack.pop()
        for i, x in enumerate(function.inputs):
            if x.creator is None:
                if x.hooks:
                    uses[x] = min(uses.get(x, (function.number, i)), (function.number, i))
            elif x.creator.number not in seen:
                seen.add(x.creator.number)
                stack.append(x.creator)
    return uses


def depends_on(
    targets: Sequence[VariableNode],
    roots: Sequence[VariableNode],
    communications: Sequence[Function],
) -> Callable[[VariableNode], bool]:
    """Return a predicate: does a variable depend on a target, or on a communication? Only peers
    know what a communication depends on.

    A communication of another tape, which this backward does not visit, counts only where no target
    stands between it and the roots; backward raises an error there. It does not count if it is
    older than all targets, or if its outputs depend on its own inputs alone.

    Args:
        targets: variables whose gradients are wanted.
        roots: the variables that backward starts from.
        communications: those on the current tape.
    """
    first = min([x.index if x.creator is None else x.creator.number for x in targets], default=0)
    on_tape = {f.number: f for f in communications}
    dependent = {node.key for node in targets}
    functions = on_tape | _ancestors([*roots, *(x for f in communications for x in f.inputs)])
    sources = set(on_tape)
    elsewhere = [
        number
        for number, f in functions.items()
        if f.communicates and number > first and number not in on_tape and not f.silent_forward
    ]
    if elsewhere:
        sources |= _ancestors(roots, dependent).keys() & set(elsewhere)
    for number, function in sorted(functions.items()):
        if number in sources or any(x.key in dependent for x in function.inputs):
            dependent.update((number, i) for i in range(len(function.outputs)))
    return lambda node: node.key in dependent


def _ancestors(roots: Sequence[VariableNode], stops: Collection[Any] = ()) -> dict[int, Function]:
    """Return the functions that computed ``roots``, by number; do not go beyond nodes whose keys
    are in ``stops``.
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


def _leave_gradients(function: Function, gys: Sequence[Gradient | None]) -> None:
    """Set ``grad`` of the outputs that are still alive, to copies: functions hand the same array
    on.
    """
    for reference, gy in zip(function.outputs, gys, strict=True):
        node = reference()
        if node is not None:
            node.gradient = None if gy is None else copy_gradient(gy)


class DeferredGradients(NamedTuple):
    """Gradients of leaves (weights) to be computed later, by ``function.vjp(gys, leaves, False,
    add_gradient)``.
    """

    function: Function
    gys: list[Gradient | None]
    leaves: list[bool]  # for each input, whether its gradient was deferred


_creator = attrgetter("creator")


def defer_leaves(
    function: Function,
    gys: list[Gradient | None],
    wanted: list[bool],
    deferred: list[DeferredGradients],
) -> list[bool]:
    """Append the gradients of a function's leaves to ``deferred``; return which inputs' gradients
    are still wanted now.

    Functions that communicate are not deferred, nor those that compute all of their gradients
    jointly.
    """
    if function.communicates or function.joint_vjp or None not in map(_creator, function.inputs):
        return wanted
    leaves = [want and x.creator is None for x, want in zip(function.inputs, wanted, strict=True)]
    if True not in leaves:
        return wanted
    deferred.append(DeferredGradients(function, gys, leaves))
    return [want and not leaf for want, leaf in zip(wanted, leaves, strict=True)]


_NOT_ON_TAPE = (
    "backward reached {}, which was replayed already or is on another tape: start from all "
    "losses at once with "
    "mnpar.backward([loss1, loss2]), keep the tape with retain_tape=True, or give each forward "
    "its own `with mnpar.Tape():`. "
    "What goes on from an earlier step's result, as a state in a time loop, is cut after "
    "backward: state.unchain_backward()"
)
