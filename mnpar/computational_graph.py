"""Computational graphs, communications included, as text for Graphviz."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mnpar.autograd.graph import VariableNode
from mnpar.autograd.tape import current_tape

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

    def _attributes(self, node: Any) -> str:
        if isinstance(node, VariableNode):
            label = f"{node.name}: " if self.show_name and node.name else ""
            label, style = f"{label}{node.shape}, {node.dtype}", self.variable_style
        elif node.communicates:
            label = _communication(node)
            style = {**self.function_style, **COMMUNICATION}
        else:
            label, style = node.label, self.function_style
        pairs = {"label": label, **style}
        return ", ".join(f'{key}="{_escaped(value)}"' for key, value in pairs.items())


def _communication(function: Any) -> str:
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
