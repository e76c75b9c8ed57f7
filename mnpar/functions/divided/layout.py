"""Divided arrays: Variables that know how they are cut over a grid of ranks.

``grid.cut(x)`` is a DividedVariable. Its shape is that of the whole array, on every rank, so that
what a program computes from shapes is what one process computes; a rank has only its part. A
function that is applied to one hands over to the layout (FunctionNode.apply), which looks up the
function's rule (functions/divided/rules): what it needs of the other ranks, and how its result is
cut. A function without a rule raises LayoutError; nothing is gathered unless the program says so.

Everything inside a rule, and all of backward, works on parts, which are ordinary Variables.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

import numpy as np

from mnpar import backend, lazy
from mnpar.backend import Array
from mnpar.communicators.wire import number_of_whole
from mnpar.errors import LayoutError, MismatchError, listed
from mnpar.functions.array.get_item import get_item
from mnpar.functions.array.joining import split_axis
from mnpar.functions.communication.base import InFunctionOf
from mnpar.functions.communication.exchange import exchange
from mnpar.functions.communication.shared import copy_to, gather_from
from mnpar.functions.divided.blocks import JoinPieces, copy_all_to, slices_within
from mnpar.functions.divided.halo import SpatialGrid, require_grid
from mnpar.parameter import Parameter
from mnpar.plans import Box, Plan, Window, blocks
from mnpar.plans.halo import halo_boxes
from mnpar.runtime.callsite import call_site
from mnpar.variable import Variable, as_variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.function_node import FunctionNode

_above = lazy.names_above(__name__, rule_of="mnpar.functions.divided.rules")

REMEDY = (
    "x.gather() gives every rank the whole array, x.repartition(grid, axes) cuts it along other "
    "axes"
)


_DECLARE = (
    "elementwise = True in the class {0} says that each element depends on those at its place "
    "alone; else @mnpar.layout_rule({0}) declares what it needs of other ranks "
    "(docs/spatial_recipe.md). "
)

REMEMBERED = 1000  # layouts of one grid
_TEXT = 252  # bytes of a layout's description that ranks compare, and show, beside its checksum
_BEGAN_APART = (
    "give all ranks one seed before the model is made (mnpar.random.seed), or rank 0's values "
    "(comm.bcast_data(model))"
)


@lru_cache(maxsize=1000)
def _boxes(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    axes: tuple[int, ...],
    ranks: int,
    window: Window | None,
) -> tuple[Box, ...]:
    """Every rank's box of an array; ranks that the grid does not need have empty ones."""
    found, lengths = [], tuple([shape[a] for a in axes])
    cuts = blocks(lengths, dims, ranks)
    for cut in cuts if window is None else halo_boxes(lengths, dims, ranks, window):
        start = [0] * len(shape)
        stop = list(shape)
        for a, first, last in zip(axes, cut.start, cut.stop, strict=True):
            start[a], stop[a] = first, last
        found.append(Box(tuple(start), tuple(stop)))
    return tuple(found)


def _text(shape: tuple[int, ...], dims: tuple[int, ...], axes: tuple[int, ...]) -> str:
    return f"{shape} cut {dims} along axes {axes}"


@lru_cache(maxsize=10_000)
def _number(*layout: tuple[int, ...]) -> int:
    """Return the number of the arrays of a layout, which calls in functions of them tell."""
    return number_of_whole(_text(*layout))


class GridLayout:
    """The layout of an array that is cut over a grid.

    Args:
        grid: whose ranks have the parts.
        shape: of the whole array.
        axes: which axis of the array each axis of the grid cuts, in rising order; None: the last
            ones.

    Raises:
        TypeError: the grid is none; ValueError: not as many axes as the grid has, or not in rising
            order.

    Attributes:
        boxes, box: the cells of the whole array that each rank has, and those that this rank has.
        part_shape: of the array that this rank has: the box's.
        cut_axes: the axes that have more than one part; all of the grid's where it does not need
            all ranks.
        window: None: parts are blocks that do not overlap. Otherwise each rank has what its block
            of the outputs of this window, on the axes of the grid, reads: :class:`HaloLayout`.

    Example:
        >>> import mnpar
        >>> def program(comm):
        ...     layout = mnpar.GridLayout(mnpar.SpatialGrid(comm, (2,)), (3, 5), axes=(1,))
        ...     return layout.box
        >>> mnpar.run(program, ranks=2)
        [Box(start=(0, 0), stop=(3, 3)), Box(start=(0, 3), stop=(3, 5))]
    """

    __slots__ = ("axes", "box", "boxes", "cut_axes", "grid", "part_shape", "shape")
    boxes: tuple[Box, ...]
    box: Box
    cut_axes: tuple[int, ...]
    window: Window | None = None

    def __init__(
        self, grid: SpatialGrid, shape: Sequence[int], axes: Sequence[int] | None = None
    ) -> None:
        require_grid(grid, "GridLayout(grid, shape)")
        self.grid, self.shape = grid, tuple(map(int, shape))
        n, ndim = len(grid.dims), len(self.shape)
        given = range(ndim - n, ndim) if axes is None else axes
        self.axes = tuple([a + ndim if a < 0 else a for a in given])
        if len(self.axes) != n or list(self.axes) != sorted({*self.axes} & {*range(ndim)}):
            raise ValueError(
                f"rank {grid.comm.rank}, {call_site()}: a grid of {grid.dims} parts cuts {n} "
                f"different axes of an array, in rising order, not the axes {tuple(given)} of an "
                f"array of shape {self.shape}: give {n} axes between 0 and {ndim - 1}, or make a "
                "grid of as many axes as are cut"
            )
        comm, dims = grid.comm, grid.dims
        self.boxes = _boxes(self.shape, dims, self.axes, comm.size, self.window)
        self.box = self.boxes[comm.rank]
        self.part_shape = self.box.shape
        idle = math.prod(dims) < comm.size
        self.cut_axes = tuple(
            [a for a, parts in zip(self.axes, dims, strict=True) if parts > 1 or idle]
        )

    def __repr__(self) -> str:
        return _text(self.shape, self.grid.dims, self.axes)

    def like(self, shape: Sequence[int], axes: Sequence[int] | None = None) -> GridLayout:
        """Return the layout of another array that this grid cuts, along the same axes if none are
        named.
        """
        axes = self.axes if axes is None else tuple(axes)
        if axes == self.axes and shape == self.shape:
            return self
        return self.over(self.grid, shape, axes)

    @staticmethod
    def over(grid: SpatialGrid, shape: Sequence[int], axes: Sequence[int]) -> GridLayout:
        """Return GridLayout(grid, shape, axes), made once: networks meet the same ones again."""
        key = tuple(shape), tuple(axes)
        found: GridLayout | None = grid.layouts.get(key)
        if found is None:
            if len(grid.layouts) > REMEMBERED:
                grid.layouts.clear()
            found = grid.layouts[key] = getattr(grid, "layout_type", GridLayout)(grid, *key)
        return found

    def only(self, axes: Sequence[int]) -> GridLayout:
        """Return the layout of the same array cut along some of the axes alone: into as many parts,
        of which the first ranks have one each.
        """
        kept = [d for a, d in zip(self.axes, self.grid.dims, strict=True) if a in axes]
        return self.over(self.grid.with_dims(kept), self.shape, [a for a in self.axes if a in axes])

    def without(self, axes: Sequence[int]) -> GridLayout:
        """Return the layout of what is left of the array without some axes, none of which is cut;
        one that the grid has and does not cut goes, too.
        """
        left = [a for a in range(len(self.shape)) if a not in axes]
        own = self.only(left)
        return self.over(own.grid, [self.shape[a] for a in left], [left.index(a) for a in own.axes])

    def after(self, who: str, windows: Window, shape: Sequence[int], first: int = 2) -> GridLayout:
        """Return the layout of the outputs, an array of ``shape``, of windows over all axes from
        ``first`` on.
        """
        return self.like(shape)

    def picked(self, who: str, axis: int, places: Array) -> GridLayout:
        """Return the layout of ``x[places]`` along an axis that is cut."""
        return self.like((*self.shape[:axis], len(places), *self.shape[axis + 1 :]))

    def parts_along(self, axis: int) -> int:
        """Return into how many parts an axis is cut."""
        return self.grid.dims[self.axes.index(axis)] if axis in self.axes else 1

    def group(self, axes: Sequence[int]) -> Communicator:
        """Return the communicator of the ranks whose parts are beside each other along some axes,
        and at the same place along all others; all ranks call this.
        """
        return self.grid.group([a in axes for a in self.axes])

    def matches(self, other: GridLayout) -> bool:
        """Return whether both cut an array of one shape alike."""
        return self is other or (
            (self.shape, self.axes, self.grid.dims, self.window)
            == (
                other.shape,
                other.axes,
                other.grid.dims,
                other.window,
            )
            and self.grid.comm is other.grid.comm
        )

    def divided(self, part: Variable) -> DividedVariable:
        """Return a divided Variable of this layout, of which this rank has ``part``.

        Raises:
            ValueError: the part has not the shape of this rank's box.
        """
        own = self.part_shape
        if part.shape != own:
            if part.size or self.box.volume:
                raise ValueError(
                    f"rank {self.grid.comm.rank}, {call_site()}: a part of shape {part.shape} is "
                    f"not its box {own} of an array of shape {self}: GridLayout(grid, shape, "
                    "axes).box says which cells a rank has"
                )
            part = part.reshape(own)
        return DividedVariable(part, self)

    def gradient(self, part: Variable, g: Variable | None) -> DividedVariable:
        """Return the gradient of a divided Variable of which this rank has ``part``: zeros, where
        nothing on this rank has asked for the part, but others' parts have gradients.
        """
        return self.divided(zeros_like(part) if g is None else g)

    # ---- functions of divided arrays ----

    def as_input(self) -> InFunctionOf:
        """Return a context in which what this rank calls matches only what others call for
        functions of an array of this layout.
        """
        return InFunctionOf(self.grid.comm, _number(self.shape, self.grid.dims, self.axes))

    def apply(self, node: FunctionNode, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Carry out a function by its rule."""
        node.layout = None
        halos = [x for x in inputs if getattr(getattr(x, "layout", None), "window", None)]
        rule = _above("rule_of")(type(node), bool(halos))
        if rule is None and halos:
            halos[0].layout.refuse(node.label, "it is no function of single cells or windows")
        if rule is None:
            name, home = type(node).__name__, type(node).__module__.partition(".")[0]
            remedy = REMEDY if home == "mnpar" else _DECLARE.format(name) + REMEDY
            self.refuse(node.label, "it has no rule for divided arrays", remedy)
        with self.as_input():
            ys: Any = rule(node, *inputs)
        return ys if isinstance(ys, tuple) else (ys,)

    def check(self, node: FunctionNode) -> GridLayout:
        """Return the layout; a communication takes parts only: it raises LayoutError."""
        if node.communicates:
            why = "a communication takes the ranks' own arrays, such as x.part"
            if (comm := node.comm) is not self.grid.comm:
                why += f", and it is called on {another(comm, self.grid.comm)} than x is cut over"
            self.refuse(node.op, why)
        return self

    def refuse(self, who: str, why: str, remedy: str = REMEDY) -> NoReturn:
        """Raise LayoutError, with what can be done."""
        raise LayoutError(
            f"rank {self.grid.comm.rank}, {call_site()}: {who} of a divided array, of shape "
            f"{self}: {why}. {remedy}"
        )

    def refuse_beside(self, who: str, other: GridLayout) -> NoReturn:
        """Raise LayoutError: another input is cut in another way, or over another communicator."""
        if (comm := other.grid.comm) is self.grid.comm:
            self.refuse(who, f"another input is {other}: all must be cut alike")
        self.refuse(
            who,
            f"another input, of shape {other}, is cut over {another(comm, self.grid.comm)}",
            "Make the grids of both on one communicator; x.gather() gives every rank the whole "
            "array",
        )

    def spatial(self, first: int = 2) -> SpatialGrid:
        """Return the grid that cuts all axes from ``first`` on: into 1 part those that this one
        does not name. Where axes before are cut, too, it is a grid of those ranks that have the
        same part of these.
        """
        dims = [self.parts_along(a) for a in range(first, len(self.shape))]
        if not [a for a in self.cut_axes if a < first]:
            return self.grid.with_dims(dims)
        return self.grid.within([a >= first for a in self.axes], dims)

    def take_own(self, x: Any) -> Variable:
        """Return the cells that this rank's part meets of an array that every rank has, where the
        two are broadcast: what backward brings is the sum over ranks.
        """
        return self.take_cells(self.shared(x))

    def take_cells(self, x: Variable) -> Variable:
        """Return what this rank's part meets of a whole array where the two are broadcast."""
        lead = len(self.shape) - x.ndim
        box = self.box
        index = tuple(
            [
                slice(box.start[a + lead], box.stop[a + lead])
                if n == self.shape[a + lead] and n != box.shape[a + lead]
                else slice(None)
                for a, n in enumerate(x.shape)
            ]
        )
        return x if index == (slice(None),) * x.ndim else get_item(x, index)

    def shared(self, x: Any) -> Variable:
        """Return an array that every rank has, to work with parts: its gradient is the sum over
        ranks.
        """
        x = as_variable(x)
        self.check_same(x)
        return copy_to(self.grid.comm, x) if x.requires_grad else x

    def shared_all(self, *params: Any) -> list[Any]:
        """Return :meth:`shared` of several arrays, of which the gradients of small ones travel
        together; Nones stay Nones.
        """
        self.check_same(*params)
        found = copy_all_to(self.grid.comm, *params)
        return [None if p is None else as_variable(p) for p in found]

    def check_agreed(self) -> None:
        """Check, when the grid first cuts an array like this, that all ranks cut alike: their parts
        would be added up as parts of one array.

        Raises:
            MismatchError: they do not; on all ranks.
        """
        comm, key = self.grid.comm, (self.shape, self.axes)
        if comm.size == 1 or key in self.grid.agreed:
            return
        _number(self.shape, self.grid.dims, self.axes)  # whose text errors of all ranks can show
        text = repr(self).encode()
        own = np.frombuffer(zlib.crc32(text).to_bytes(4, "little") + text[:_TEXT], np.uint8)
        every = comm.allgather(np.pad(own, (0, 4 + _TEXT - len(own))))
        if len({row.tobytes() for row in every}) > 1:
            cuts = [row[4:].tobytes().rstrip(b"\0").decode() for row in every]
            raise MismatchError(
                f"rank {comm.rank}, {call_site()}: the ranks cut an array in different ways:"
                + "".join([f"\n  rank {rank}: {cut}" for rank, cut in enumerate(cuts[:16])])
                + "\nall ranks of a grid cut the same array, along the same axes"
            )
        if len(self.grid.agreed) > REMEMBERED:
            self.grid.agreed.clear()
        self.grid.agreed[key] = None

    def check_same(self, *params: Any) -> None:
        """Check that all ranks have the same values of Parameters, when the grid meets one for the
        first time. (Copies that drift apart later are found where ``copy_to`` takes them.)

        Raises:
            MismatchError: they differ; on all ranks.
        """
        seen = self.grid.seen
        new = [
            p
            for p in params
            if isinstance(p, Parameter) and ((known := seen.get(id(p))) is None or known() is not p)
        ]
        if self.grid.comm.size == 1 or not new:
            return
        digests = [zlib.crc32(backend.to_device(-1, p.array).tobytes()) for p in new]
        every = self.grid.comm.allgather(np.array(digests))
        for i, param in enumerate(new):
            if len({int(row[i]) for row in every}) > 1:
                raise MismatchError(
                    f"rank {self.grid.comm.rank}, {call_site()}: the Parameter "
                    f"{param.name or ''} {param.shape} has other values on other ranks of "
                    f"{self.grid}, which use it for parts of one array: {_BEGAN_APART}"
                )
            seen[id(param)] = ref(param)

    def labels(self, who: str, t: Any, axis: int | None) -> tuple[Array, Callable[[Any], Any]]:
        """Return the labels of this rank's part, and a function that sums a count over the ranks.

        Args:
            who: of the function that asks.
            t: labels of all places, whole or divided.
            axis: of this array, which labels do not have: the classes.

        Raises:
            LayoutError: the classes are cut, or the labels in another way than the scores.
        """
        own = self
        if axis is not None:
            if axis in self.cut_axes:
                self.refuse(who, f"the classes, axis {axis}, are cut")
            own = self.without((axis,))
        t = as_variable(t)
        if t.layout is not None and not own.matches(t.layout):
            if t.layout.grid.comm is not self.grid.comm:
                t.layout.refuse_beside(who, self)
            t.layout.refuse(who, f"the scores are {self}: labels must be cut as they are")
        labels = own.take_own(t) if t.layout is None else t.part
        return labels.array, lambda n: self.grid.comm.allreduce(np.asarray(n))

    def moved(
        self, x: DividedVariable, to: GridLayout, wants: Sequence[Box] | None = None
    ) -> Variable:
        """Return the cells of ``x`` that this rank wants.

        Args:
            x: of this layout.
            to: says from which axis on cells move; the axes before are whole.
            wants: for each rank its cells; None: those of ``to``.
        """
        wants = to.boxes if wants is None else wants
        first = min((*self.axes, *to.axes), default=0)
        have = tuple([_inner(box, first) for box in self.boxes])
        want = tuple([_inner(box, first) for box in wants])
        if have == want:
            return x.part
        y: Variable = exchange(self.grid.comm, x.part, plan_between(have, want))
        return y

    def repartitioned(self, x: DividedVariable, to: GridLayout) -> Variable:
        """Return the cells that this rank has by another layout, where the program asks for it."""
        return self.moved(x, to)

    def gathered(self, x: DividedVariable) -> Variable:
        """Return the whole array, on every rank, which own it together."""
        comm, part = self.grid.comm, x.part
        if comm.size == 1 or not self.axes:
            return part
        with self.as_input():
            flat = gather_from(comm, part.reshape((part.size,)), axis=0)
        boxes = [box for box in self.boxes if box.volume]
        if not boxes:
            return part.reshape(self.shape)
        ends = np.cumsum([box.volume for box in boxes])[:-1].tolist()
        parts: Any = split_axis(flat, ends, axis=0)
        places = [slices_within(box, Box.whole(self.shape)) for box in boxes]
        shaped = [p.reshape(box.shape) for p, box in zip(parts, boxes, strict=True)]
        return JoinPieces(places, self.shape, full=True).apply(tuple(shaped))[0]


def another(comm: Communicator, known: Communicator) -> str:
    """Return what tells a communicator from a known one: its ranks, numbers in the job."""
    ranks, others = [sorted(one.transport.world_ranks) for one in (comm, known)]
    if ranks == others:
        return f"another communicator (of the same ranks {listed(ranks)})"
    return f"another communicator (of ranks {listed(ranks)}, not {listed(others)})"


def zeros_like(part: Variable) -> Variable:
    """Return the gradient of what no function reads."""
    return Variable(part.xp.zeros(part.shape, part.dtype), requires_grad=False)


def _inner(box: Box, first: int) -> Box:
    return Box(box.start[first:], box.stop[first:])


@lru_cache(maxsize=1000)
def plan_between(have: tuple[Box, ...], want: tuple[Box, ...]) -> Plan:
    """Return the plan that brings each rank what it wants; remembered."""
    return Plan(have, want)


def _of_part(path: str, doc: str) -> Any:
    return property(attrgetter(f"part.{path}"), doc=doc)


def _of_layout(path: str, doc: str) -> Any:
    return property(attrgetter(f"layout.{path}"), doc=doc)


class DividedVariable(Variable):
    """A Variable of which each rank of a grid has a part; :func:`mnpar.divided` makes one.

    ``shape``, ``ndim``, ``size`` and ``len`` are those of the whole array. Functions of it are
    functions of the whole array, forward and backward; those without a rule raise
    :class:`mnpar.errors.LayoutError`.

    Attributes:
        part: this rank's part, an ordinary Variable at the same place in the graph.
        layout: the :class:`GridLayout`.
        box: the cells that the part has.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> def program(comm):
        ...     x = mnpar.SpatialGrid(comm, (2,)).cut(np.arange(3.0))
        ...     return x, x.shape, F.sum(x).item()
        >>> mnpar.run(program, ranks=2)[1]
        (divided variable[2:3] of (3,)([2.]), (3,), 3.0)
    """

    __slots__ = ("layout", "part")
    layout: GridLayout
    part: Variable

    def __init__(self, part: Variable, layout: GridLayout) -> None:
        self.part, self.node, self.layout = part, part.node, layout

    shape = _of_layout("shape", "The shape of the whole array.")
    whole_shape = _of_layout("shape", "The shape of the whole array.")
    box = _of_layout("box", "The cells of the whole array that this rank has.")
    dtype = _of_part("dtype", "The dtype of the array.")
    xp = _of_part("xp", "numpy or cupy.")
    device = _of_part("device", "``'@numpy'`` or ``'@cupy:0'``.")
    ndim = property(lambda self: len(self.layout.shape), doc="The number of axes.")
    size = property(
        lambda self: int(np.prod(self.layout.shape)), doc="The number of elements of the whole."
    )

    @property
    def array(self) -> Array:
        """Raise LayoutError: what would be computed of a part alone is not what one process
        computes.
        """
        self.layout.refuse(
            "the array", "this rank has a part of it, x.part.array, whose place is x.box"
        )

    @array.setter
    def array(self, _: Array) -> None:
        self._refuse_writing()

    def __setitem__(self, *_: Any) -> None:
        self._refuse_writing()

    def _refuse_writing(self) -> NoReturn:
        self.layout.refuse(
            "changing the elements",
            "this rank has a part of them",
            "Functions make new arrays, such as x * mask and F.where(mask, 0, x); x.part.array[…] "
            "= … writes cells of this rank, whose place is x.box, before functions have used them; "
            "mnpar.divided(part, grid, axes, shape) makes a divided array of parts",
        )

    @property
    def grad(self) -> Array:
        """The gradient of this rank's part, an array of the part's shape; None before any backward
        has computed one.

        Raises:
            LayoutError: parts have halos: each rank has a share of the gradient.
        """
        g = self.part.grad
        if g is not None and self.layout.window is not None:
            self.layout.refuse(
                "the gradient",
                "x.part.grad is this rank's share of it",
                "mnpar.grad(outputs, [x]) adds the shares up",
            )
        return g

    @grad.setter
    def grad(self, g: Array | None) -> None:
        if g is not None and getattr(g, "shape", self.part.shape) != self.part.shape:
            raise ValueError(
                f"rank {self.layout.grid.comm.rank}, {call_site()}: an array of shape {g.shape} "
                f"cannot be the gradient of this rank's part {self.part.shape} of an array of "
                f"shape {self.layout}: give the part's cells, g[x.box.index]"
            )
        self.part.grad = g

    @property
    def grad_var(self) -> Variable | None:
        """The gradient as a Variable, divided alike."""
        g = None if self.grad is None else self.part.grad_var
        return None if g is None else self.layout.divided(g)

    @grad_var.setter
    def grad_var(self, g: Variable | None) -> None:
        if g is None:
            self.part.grad_var = None
            return
        if isinstance(g, DividedVariable):
            if not g.layout.matches(self.layout):
                g.layout.refuse_beside("the gradient", self.layout)
            g = g.part
        self.grad = g.array
        self.part.grad_var = g

    def gather(self) -> Variable:
        """Return the whole array, an ordinary Variable, on every rank of the grid, all of which
        call this and then do the same with it.

        The ranks own it together: a loss that all compute from it counts once, and backward gives
        each rank the gradient of its part without a message.

        Example:
            >>> import numpy as np, mnpar
            >>> def program(comm):
            ...     x = mnpar.divided(np.arange(3.0), mnpar.SpatialGrid(comm, (2,)))
            ...     return (2 * x).gather().array.tolist()
            >>> mnpar.run(program, ranks=2)
            [[0.0, 2.0, 4.0], [0.0, 2.0, 4.0]]
        """
        return self.layout.gathered(self)

    def repartition(self, grid: SpatialGrid, axes: Sequence[int] | None = None) -> DividedVariable:
        """Return the same array cut over another grid of the same ranks, or along other axes.

        Args:
            grid: of this grid's communicator.
            axes: as in :func:`mnpar.divided`.

        Raises:
            ValueError: the grid has another communicator, or other axes than the array.
            MismatchError: ranks cut in different ways; on all ranks.

        Example:
            >>> import numpy as np, mnpar
            >>> def program(comm):
            ...     rows, columns = mnpar.SpatialGrid(comm, (2, 1)), mnpar.SpatialGrid(comm, (1, 2))
            ...     return rows.cut(np.eye(2)).repartition(columns).part.array.tolist()
            >>> mnpar.run(program, ranks=2)
            [[[1.0], [0.0]], [[0.0], [1.0]]]
        """
        require_grid(grid, "x.repartition(grid, axes)")
        if grid.comm is not self.layout.grid.comm:
            raise ValueError(
                f"rank {grid.comm.rank}, {call_site()}: repartition: {grid} is on "
                f"{another(grid.comm, self.layout.grid.comm)} than x, of shape {self.layout}, is "
                "cut over. Make both grids on one communicator; x.gather() gives every rank the "
                "whole array"
            )
        to = GridLayout(grid, self.shape, axes)
        to.check_agreed()
        with self.layout.as_input():
            return to.divided(self.layout.repartitioned(self, to))

    def __len__(self) -> int:
        return len(self.part) if not self.ndim else int(self.shape[0])

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"rank {self.layout.grid.comm.rank}, {call_site()}: a divided Variable of shape "
            f"{self.layout} is not pickled, copied or sent as an object: other ranks have parts of "
            "it. x.gather() is a Variable of the whole array, x.part.array an array"
        )

    def __repr__(self) -> str:
        place = ", ".join([f"{a}:{b}" for a, b in zip(self.box.start, self.box.stop, strict=True)])
        name = f" {self.name}" if self.name else ""
        halos = "" if self.layout.window is None else " with halos"
        values = repr(self.part.array)[6:-1]
        return f"divided variable{halos}{name}[{place}] of {self.shape}({values})"


def divided(
    x: Variable | Array,
    grid: SpatialGrid,
    axes: Sequence[int] | None = None,
    shape: Sequence[int] | None = None,
) -> DividedVariable:
    """Cut an array over a grid: each rank keeps its part, and functions of the result are those of
    the whole array. ``grid.cut(x, axes)`` is the same.

    Args:
        x: the whole array, the same on every rank, of which nothing is sent. With ``shape``: this
            rank's part of it.
        grid: all ranks of its communicator call this, and then the same functions.
        axes: which axis of ``x`` each axis of the grid cuts, in rising order; None: the last ones.
        shape: of the whole array, where ``x`` is a part.

    Returns:
        A :class:`DividedVariable`.

    Raises:
        ValueError: axes that ``x`` does not have, or a part that is not this rank's.
        MismatchError: ranks cut in different ways, which they tell each other when the grid first
            cuts an array of this shape; on all ranks.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F, mnpar.links as L
        >>> def program(comm):
        ...     mnpar.random.seed(0)
        ...     layer = L.Convolution2D(1, 2, ksize=3, pad=1)
        ...     x = mnpar.divided(np.ones((1, 1, 5, 4), "f4"), mnpar.SpatialGrid(comm, (2, 1)))
        ...     y = F.relu(layer(x))
        ...     return y.shape, y.box.shape
        >>> mnpar.run(program, ranks=2)
        [((1, 2, 5, 4), (1, 2, 3, 4)), ((1, 2, 5, 4), (1, 2, 2, 4))]
    """
    require_grid(grid, "divided(x, grid)")
    x = as_variable(x)
    if x.layout is not None:
        if shape is not None:
            x.layout.refuse("divided(x, grid, shape)", "x is divided already")
        return x.repartition(grid, axes)  # type: ignore[attr-defined,no-any-return]
    layout = GridLayout(grid, x.shape if shape is None else shape, axes)
    layout.check_agreed()
    return layout.divided(layout.take_own(x) if shape is None else x)


def is_divided(x: object) -> bool:
    """Return whether ``x`` is a divided Variable."""
    return isinstance(x, DividedVariable)


def parts_of(xs: Iterable[DividedVariable]) -> tuple[Variable, ...]:
    """Return this rank's parts."""
    return tuple([x.part for x in xs])


Rule = Callable[..., Any]
