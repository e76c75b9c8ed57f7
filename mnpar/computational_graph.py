"""Computational graphs, communications included: as text for Graphviz, and as pictures in
notebooks.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from mnpar.autograd.graph import VariableNode
from mnpar.autograd.tape import current_tape
from mnpar.function_node import FunctionNode

__all__ = ["ComputationalGraph", "build_computational_graph"]
Style = Mapping[str, str]
VARIABLE: Style = {"shape": "octagon", "fillcolor": "#E0E0E0", "style": "filled"}
FUNCTION: Style = {"shape": "box", "fillcolor": "#6495ED", "style": "filled"}
COMMUNICATION: Style = {"shape": "box", "fillcolor": "#FFA54F", "style": "filled,rounded"}


class ComputationalGraph:
    """The graph that :func:`build_computational_graph` returns.

    Args:
        nodes: VariableNodes and FunctionNodes.
        edges: pairs of them, in the direction of the computation.
        variable_style, function_style, rankdir, remove_variable, show_name: as of
            :func:`build_computational_graph`.
    """

    def __init__(
        self,
        nodes: list[Any],
        edges: list[tuple[Any, Any]],
        variable_style: Style | str | None = "default",
        function_style: Style | str | None = "default",
        rankdir: str = "TB",
        remove_variable: bool = False,
        show_name: bool = True,
    ) -> None:
        if rankdir not in ("TB", "BT", "LR", "RL"):
            raise ValueError(f"a graph is drawn TB, BT, LR or RL, not {rankdir!r}")
        self.nodes = nodes
        self.edges = edges
        self.rankdir = rankdir
        self.show_name = show_name
        self.remove_variable = remove_variable
        self.variable_style = _style(variable_style, VARIABLE)
        self.function_style = _style(function_style, FUNCTION)

    def dump(self, format: str = "dot") -> str:
        """Return the graph in Graphviz's language: ``dot -Tsvg`` makes a picture of it.

        Raises:
            NotImplementedError: another format than ``'dot'``.
        """
        if format != "dot":
            raise NotImplementedError(f"a graph is dumped as 'dot', not {format!r}")
        ids = {id(node): f"n{i}" for i, node in enumerate(self.nodes)}
        lines = [f"{ids[id(node)]} [{self._attributes(node)}];" for node in self.nodes]
        lines += [f"{ids[id(a)]} -> {ids[id(b)]};" for a, b in self.edges]
        return "\n".join(["digraph graphname {", f"rankdir={self.rankdir};", *lines, "}"]) + "\n"

    def _repr_svg_(self) -> str | None:
        """Return a picture for a notebook; None of a graph that is too large to be looked at."""
        return _svg(self) if len(self.nodes) <= _MOST_NODES else None

    def _attributes(self, node: Any) -> str:
        pairs = self.attributes(node)
        return ", ".join(f'{key}="{_escaped(value)}"' for key, value in pairs.items())

    def attributes(self, node: Any) -> dict[str, str]:
        """Return Graphviz's attributes of a node: its label, and the style of its kind."""
        if isinstance(node, VariableNode):
            label = f"{node.name}: " if self.show_name and node.name else ""
            label, style = f"{label}{node.shape}, {node.dtype}", self.variable_style
        elif node.communicates:
            label = _communication(node)
            style = {**self.function_style, **COMMUNICATION}
        else:
            label, style = node.label, self.function_style
        return {"label": label, **style}


def _communication(function: FunctionNode) -> str:
    """Return its label, which names operation, line and rank, and with whom it speaks."""
    words = [f"to {function.dest}"] if hasattr(function, "dest") else []
    words += [f"from {function.source}"] if hasattr(function, "source") else []
    words += [f"root {function.root}"] if hasattr(function, "root") else []
    words += [f"tag {function.tag}"] if hasattr(function, "tag") else []
    return f"{function.label}\n{', '.join(words)}" if words else str(function.label)


def _style(style: Style | str | None, default: Style) -> Style:
    if isinstance(style, str) and style != "default":
        raise ValueError(
            f"a style is a dictionary of Graphviz's attributes, 'default' or None, not {style!r}"
        )
    return default if isinstance(style, str) else {} if style is None else style


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---- the picture for notebooks ----

_MOST_NODES = 300
_HIGH, _GAP, _LETTER = 34, 26, 7  # pixels: a node, the space between nodes, a letter


def _svg(graph: ComputationalGraph) -> str:
    """Return the graph in rows: a node stands below all that it was computed from."""
    before: dict[int, list[Any]] = {id(node): [] for node in graph.nodes}
    for a, b in graph.edges:
        before[id(b)].append(a)
    depth = dict[int, int]()
    for node in _in_order(graph.nodes, before):
        depth[id(node)] = max([depth[id(x)] + 1 for x in before[id(node)]], default=0)
    rows: list[list[Any]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in graph.nodes:
        rows[depth[id(node)]].append(node)
    labels = {id(node): graph.attributes(node)["label"].split("\n") for node in graph.nodes}
    widths = {key: _LETTER * max(map(len, lines)) + 20 for key, lines in labels.items()}
    wide = max([sum([widths[id(x)] + _GAP for x in nodes]) for nodes in rows], default=0)
    places = dict[int, tuple[float, float]]()  # of the nodes' middles
    for number, nodes in enumerate(rows):
        # each node as near as can be to those above it
        nodes.sort(key=lambda node: _mean([places[id(x)][0] for x in before[id(node)]], wide / 2))
        left = (wide - sum([widths[id(x)] + _GAP for x in nodes])) / 2 + _GAP / 2
        for node in nodes:
            places[id(node)] = left + widths[id(node)] / 2, number * (_HIGH + _GAP) + _HIGH / 2 + 4
            left += widths[id(node)] + _GAP
    arrows = [_arrow(places[id(a)], places[id(b)]) for a, b in graph.edges]
    boxes = [
        _box(places[id(node)], widths[id(node)], labels[id(node)], graph.attributes(node))
        for node in graph.nodes
    ]
    high = len(rows) * (_HIGH + _GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high}" '
        f'viewBox="0 0 {wide:.0f} {high}" font-family="sans-serif" font-size="11">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#808080"/></marker></defs>'
        f"{''.join([*arrows, *boxes])}</svg>"
    )


def _in_order(nodes: list[Any], before: dict[int, list[Any]]) -> list[Any]:
    """Return the nodes, each after all those before it."""
    found: dict[int, Any] = {}
    stack = [(node, False) for node in reversed(nodes)]
    while stack:
        node, is_next = stack.pop()
        if is_next:
            found[id(node)] = node
        elif id(node) not in found:
            stack += [(node, True), *[(x, False) for x in before[id(node)]]]
    return list(found.values())


def _mean(numbers: list[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, top), (u, bottom) = start, end
    top, bottom = top + _HIGH / 2, bottom - _HIGH / 2
    middle = (top + bottom) / 2
    path = f"M{x:.0f},{top:.0f} C{x:.0f},{middle:.0f} {u:.0f},{middle:.0f} {u:.0f},{bottom:.0f}"
    return f'<path d="{path}" fill="none" stroke="#808080" marker-end="url(#tip)"/>'


def _box(place: tuple[float, float], width: int, lines: list[str], style: Style) -> str:
    x, y = place
    corner = _HIGH // 2 if style.get("shape") == VARIABLE["shape"] else 3
    first = y + 4 - 6.5 * (len(lines) - 1)
    texts = [
        f'<text x="{x:.0f}" y="{first + 13 * i:.0f}" text-anchor="middle" fill="#000">'
        f"{html.escape(line)}</text>"
        for i, line in enumerate(lines)
    ]
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y - _HIGH / 2:.0f}" width="{width}" height="{_HIGH}" '
        f'rx="{corner}" fill="{html.escape(style.get("fillcolor", "#ffffff"))}" '
        f'stroke="#606060"/>{"".join(texts)}'
    )


def build_computational_graph(
    outputs: Iterable[Any],
    remove_split: bool = True,
    variable_style: Style | str | None = "default",
    function_style: Style | str | None = "default",
    rankdir: str = "TB",
    remove_variable: bool = False,
    show_name: bool = True,
    *,
    communications: bool = True,
) -> ComputationalGraph:
    """Return the functions and variables that led to some outputs on this rank.

    Communications have a colour of their own and show with whom they speak, under which tag.

    Args:
        outputs: Variables, or their nodes.
        remove_split: only True is supported, as in Chainer.
        variable_style, function_style: attributes for Graphviz; ``'default'``, or None for none.
        rankdir: ``'TB'`` from top to bottom, ``'BT'``, ``'LR'``, ``'RL'``.
        remove_variable: show functions only.
        show_name: show the names of variables.
        communications: show all communications of the current tape, too: a send leads to outputs of
            another rank.

    Returns:
        A :class:`ComputationalGraph`; its ``dump()`` is the text.

    Raises:
        ValueError: ``remove_split`` is False, or there is no such ``rankdir``.

    Example:
        >>> import numpy as np, mnpar
        >>> from mnpar.computational_graph import build_computational_graph
        >>> x = mnpar.Variable(np.ones(2), name="x")
        >>> graph = build_computational_graph([x * x], remove_variable=True)
        >>> print(graph.dump())
        digraph graphname {
        rankdir=TB;
        n0 [label="Mul", shape="box", fillcolor="#6495ED", style="filled"];
        }
        <BLANKLINE>
    """
    if not remove_split:
        raise ValueError("build_computational_graph: remove_split=False does not exist")
    ends = [getattr(y, "node", y) for y in outputs]
    reached = _reached(
        [y.creator for y in ends] + (current_tape().records if communications else [])
    )
    nodes: dict[
        Any, Any
    ] = {}  # by what is the same for all nodes of one variable, and by the number of a function
    edges: dict[tuple[Any, Any], None] = {}
    for function in reached:
        for x in function.inputs:
            source = x.key
            if remove_variable:
                source = x.creator and x.creator.number
            else:
                nodes.setdefault(x.key, x)
            if source is not None:
                edges[source, function.number] = None
        nodes[function.number] = function
    for y in [] if remove_variable else ends:
        nodes.setdefault(y.key, y)
    for key, node in nodes.items():
        if isinstance(node, VariableNode) and node.creator is not None:
            edges[node.creator.number, key] = None
    pairs = [(nodes[a], nodes[b]) for a, b in edges]
    styles = variable_style, function_style
    return ComputationalGraph(
        list(nodes.values()), pairs, *styles, rankdir, remove_variable, show_name
    )


def _reached(stack: list[Any]) -> list[Any]:
    """Return all functions before these and themselves (or None), in the order in which they
    ran.
    """
    found: dict[int, Any] = {}
    while stack:
        function = stack.pop()
        if function is not None and function.number not in found:
            found[function.number] = function
            stack += [x.creator for x in function.inputs]
    return [function for _, function in sorted(found.items())]
