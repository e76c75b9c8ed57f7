"""The table of rules: for each function what it needs of the other ranks when its input is divided,
and how its result is cut.

A rule is a function ``rule(node, *inputs)`` that is called in place of the node's ``forward``, with
the node, made for the whole array, and its inputs. It returns the outputs: divided Variables, or
ordinary ones that all ranks have and own together. It works on parts (``x.part``), which are
ordinary Variables, by any functions; so backward, of any order, needs no rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from mnpar.function_node import FunctionNode
from mnpar.functions.divided.layout import GridLayout, Rule
from mnpar.plans import Box
from mnpar.variable import Variable, as_variable

Decorated = TypeVar("Decorated", bound=Rule)
RULES: dict[type[FunctionNode], Rule] = {}
WITH_HALOS: dict[type[FunctionNode], bool] = {}  # those whose rules work on parts with halos


def layout_rule(
    *nodes: type[FunctionNode], halos: bool = False
) -> Callable[[Decorated], Decorated]:
    """Declare how functions work on divided arrays, as a decorator of the rule.

    A function whose every output element depends on the elements at its place alone needs no rule:
    ``elementwise = True`` in its class says so.

    Args:
        nodes: the FunctionNodes, not their subclasses.
        halos: the rule works on parts with halos, too, which ``F.halo_exchange`` of a divided array
            makes: some cells are on several ranks, and nothing is sent.

    Example:
        >>> import numpy as np, mnpar
        >>> import mnpar.functions as F
        >>> class Length(mnpar.FunctionNode):
        ...     def forward(self, x):
        ...         self.retain_inputs((0,))
        ...         return np.sqrt((x * x).sum())
        ...
        ...     def backward(self, gy):
        ...         (x,) = self.get_retained_inputs()
        ...         return lambda: gy * x / Length().apply((x,))[0]
        >>> @mnpar.layout_rule(Length)
        ... def length(node, x):  # every rank adds up its squares, and then all of them
        ...     squares = F.reduce_from(x.layout.grid.comm, F.sum(x.part * x.part))
        ...     return F.sqrt(squares)
        >>> def program(comm):
        ...     x = mnpar.divided(np.array([2.0, 1.0, 2.0]), mnpar.SpatialGrid(comm, (2,)))
        ...     return Length().apply((x,))[0].item()
        >>> mnpar.run(program, ranks=2)
        [3.0, 3.0]
    """

    def decorate(rule: Decorated) -> Decorated:
        for node in nodes:
            RULES[node] = rule
            if halos:
                WITH_HALOS[node] = True
        return rule

    return decorate


def only_first(node: FunctionNode, x: Any, *others: Any) -> GridLayout:
    """Return the layout of a function's first input, the only one that may be divided.

    Raises:
        LayoutError: another one is.
    """
    for i, other in enumerate(others, 1):
        layout = getattr(other, "layout", None)
        if layout is not None:
            layout.refuse(node.label, f"its input {i} must be whole on every rank")
    layout = x.layout
    assert isinstance(layout, GridLayout)
    layout.check_same(*others)
    return layout


def aligned(node: FunctionNode, inputs: tuple[Any, ...]) -> tuple[GridLayout, list[Variable]]:
    """Return the layout of what divided and whole inputs make together when they are broadcast, and
    what this rank's part of it meets of each input. Means over an axis that is cut, of length 1,
    are sent to the ranks that have the cells of the axis.

    Raises:
        LayoutError: two are cut in different ways.
    """
    alike = getattr(inputs[0], "layout", None)
    if alike is not None and all([getattr(x, "layout", None) is alike for x in inputs]):
        return alike, [x.part for x in inputs]
    xs: list[Any] = [as_variable(x) for x in inputs]
    shape = np.broadcast_shapes(*[x.shape for x in xs])
    spread = [_spread(x, shape) for x in xs if x.layout is not None]
    if not any(spread):
        x = next(x for x in xs if x.layout is not None)
        x.layout.refuse(node.label, f"it is repeated to {shape} along an axis that is cut")
    layout = next(wide for wide in spread if wide is not None)
    parts = []
    for x in xs:
        if x.layout is None:
            parts.append(layout.take_own(x))
        elif (wide := _spread(x, shape)) is not None and wide.matches(layout):
            parts.append(x.part)
        elif layout.window or x.layout.window:
            x.layout.refuse_beside(node.label, layout)
        else:
            parts.append(_brought(node, x, layout))
    return layout, parts


def _spread(x: Any, shape: tuple[int, ...]) -> GridLayout | None:
    """Return the layout of an input that is broadcast; None: along an axis that is cut."""
    layout: GridLayout = x.layout
    lead = len(shape) - x.ndim
    if [a for a in layout.cut_axes if x.shape[a] != shape[a + lead]]:
        return None
    return layout.like(shape, [a + lead for a in layout.axes])


def _brought(node: FunctionNode, x: Any, layout: GridLayout) -> Variable:
    """Return what this rank's part meets of an array of length 1 along the axes in whose parts the
    two differ.
    """
    lead = len(layout.shape) - x.ndim
    ones = [a for a in range(x.ndim) if x.shape[a] == 1 != layout.shape[a + lead]]
    wants = [
        Box(
            tuple([0 if a in ones else box.start[a + lead] for a in range(x.ndim)]),
            tuple([1 if a in ones else box.stop[a + lead] for a in range(x.ndim)]),
        )
        for box in layout.boxes
    ]
    alike = [
        parts_along(layout, a + lead) == parts_along(x.layout, a)
        for a in range(x.ndim)
        if x.shape[a] != 1
    ]
    if not all(alike) or x.layout.grid.comm is not layout.grid.comm:
        x.layout.refuse_beside(node.label, layout)
    part: Variable = x.layout.moved(x, x.layout, wants)
    return part


def parts_along(layout: GridLayout, axis: int) -> int:
    """Return into how many parts an axis is cut."""
    dims = zip(layout.axes, layout.grid.dims, strict=True)
    return next((parts for a, parts in dims if a == axis), 1)
