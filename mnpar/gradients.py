"""The gradients of one backward: added up for each variable, until the function that made it is
visited.

Functions are visited in the reverse of their order (law 3), those that communicate in any case (law
4), others when a gradient has reached them; by then all gradients of their outputs are there.

The gradient of a leaf is *final* once the earliest function that reads the leaf has been visited: a
hook may then use it, for instance to start its allreduce, while backward goes on. A walk over the
graph finds that function; it takes place only if a variable with hooks gets a gradient.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from mnpar.backend import HALVES, added, narrowed, unscalar
from mnpar.graph import Function, Gradient, VariableNode
from mnpar.owning import copied
from mnpar.reach import earliest_readers


class Gradients:
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
            self.add(node, g if g.dtype is node.dtype else narrowed(g, node.dtype))

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
            sums[place] = added(old, g)
        elif node in own:
            if own[node] is None:
                old += g
            else:
                self._widen(node, old, g)
        else:
            own[node] = () if g.dtype.char in HALVES else None
            if node.home is not None and node.home.computed(old):
                old += g
            else:
                sums[place] = added(old, g)
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
            gys[i] = heard(self._heard[key], gys[i])
        if key in self._stays:
            self.totals[key] = gys[i]

    def _listen(self, node: VariableNode, first: bool) -> None:
        if node.creator is not None:
            self._heard[node.key] = node
        elif first and not self._parts:
            if self._readers is None:
                self._readers = earliest_readers(self._functions)
            number, place = self._readers.get(node, (0, 0))  # 0: backward started from it
            insort(self._awaited, (number, place, node), key=lambda entry: entry[:2])

    def _passed(self, number: int) -> None:
        """All functions from this number on were visited: leaves that no earlier function reads are
        final.
        """
        while self._awaited and self._awaited[-1][0] >= number:
            node = self._awaited.pop()[2]
            g = heard(node, self.totals[node])
            if self._keep is None:
                self.totals[node] = g
            else:
                del self.totals[node]
                self._keep(node, g)
                for hook in node.hooks:
                    if hook.after:
                        hook.function(node)


def heard(node: VariableNode, g: Gradient) -> Gradient:
    """The gradient after the hooks of its variable, each of which may replace it."""
    for hook in node.hooks:
        if not hook.after:
            new = hook.function(g)
            if new is None:
                continue
            # an array for an array
            new = new if hasattr(g, "node") else unscalar(getattr(new, "array", new))
            if (new.shape, new.dtype) != (g.shape, g.dtype):
                raise ValueError(
                    f"a hook made a {new.shape} {new.dtype} of the {g.shape} {g.dtype} "
                    "gradient that it was given"
                )
            g = new
    return g


def leave(function: Function, gys: list[Gradient]) -> None:
    """Set ``grad`` of the outputs that are still alive: to copies, because functions hand the same
    array on.
    """
    for node, gy in zip([reference() for reference in function.outputs], gys, strict=True):
        if node is not None:
            node.gradient = None if gy is None else copied(gy)


_SPENT = (
    "backward reached {}, which was replayed already or is on another tape: start from all "
    "losses at once with "
    "mnpar.backward([loss1, loss2]), keep the tape with retain_tape=True, or give each forward "
    "its own `with mnpar.Tape():`. "
    "What goes on from an earlier step's result, as a state in a time loop, is cut after "
    "backward: state.unchain_backward()"
)
