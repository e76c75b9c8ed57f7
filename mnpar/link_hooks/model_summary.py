"""A table of a model: its links, what they return, and the parameters that this rank holds."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

from mnpar.configuration import no_backprop_mode, using_config
from mnpar.link import Link
from mnpar.link_hook import ForwardPostprocessCallbackArgs, LinkHook
from mnpar.parameter import Parameter
from mnpar.variable import Variable

_HEADER = ("path", "link", "output", "parameters", "elements", "bytes")
_RIGHT = (4, 5)  # columns of numbers


class LinkRow(NamedTuple):
    """A link of a model, on this rank.

    Args:
        path: in the model.
        kind: the name of its class.
        output: the shapes that its last call returned; empty if it was not called.
        parameters: the shapes of its own parameters; ``of (…)`` follows that of a part, and ``?``
            stands for a shape that the first data will tell.
        elements: how many numbers these have.
        nbytes: how many bytes.
    """

    path: str
    kind: str
    output: str
    parameters: str
    elements: int
    nbytes: int


class ModelSummary:
    """The result of :func:`mnpar.summary`: prints as a table, and shows itself in notebooks.

    Attributes:
        rows: a :class:`LinkRow` for each link.
        elements: of all parameters on this rank, each counted once.
        nbytes: of the same.
        unknown: parameters without a shape yet.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> table = mnpar.summary(L.Linear(3, 2))
        >>> table.rows[0].parameters, table.elements
        ('W(2, 3) b(2)', 8)
    """

    def __init__(self, model: Link, outputs: dict[int, str]) -> None:
        self.rows = [
            LinkRow(path, type(link).__name__, outputs.get(id(link), ""), *_parameters_of(link))
            for path, link in model.namedlinks()
        ]
        params = list({id(param): param for param in model.params()}.values())
        known = [param for param in params if param.array is not None]
        self.elements = sum([param.size for param in known])
        self.nbytes = sum([param.array.nbytes for param in known])
        self.unknown = len(params) - len(known)

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                row.path,
                row.kind,
                row.output,
                row.parameters,
                f"{row.elements:,}" if row.parameters else "",
                f"{row.nbytes:,}" if row.parameters else "",
            )
            for row in self.rows
        ]

    def _last_line(self) -> str:
        line = f"on this rank: {self.elements:,} elements of parameters, {self.nbytes:,} bytes"
        if self.unknown:
            line += f"; {self.unknown} without a shape yet, which summary(model, x) finds out"
        return line

    def __str__(self) -> str:
        table = [_HEADER, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(
                [
                    cell.rjust(width) if i in _RIGHT else cell.ljust(width)
                    for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
                ]
            ).rstrip()
            for cells in table
        ]
        return "\n".join([*lines, self._last_line()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""

        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join([f"<{tag}>{html.escape(c)}</{tag}>" for c in cells]) + "</tr>"

        body = "".join([row(cells, "td") for cells in self._cells()])
        last = html.escape(self._last_line())
        return f"<table>{row(_HEADER, 'th')}{body}</table><p>{last}</p>"


class _Outputs(LinkHook):
    """Notes the shapes of what links return."""

    name = "ModelSummary"

    def __init__(self) -> None:
        self.shapes: dict[int, str] = {}

    def forward_postprocess(self, args: ForwardPostprocessCallbackArgs) -> None:
        self.shapes[id(args.link)] = _shapes_of(args.out)


def summary(model: Link, *args: Any, **kwargs: Any) -> ModelSummary:
    """Return a table of a model: paths, links, shapes on this rank, elements and bytes.

    Args:
        model: the model, or this rank's part of it.
        args: with arguments the model is called once, without a graph and not in training mode: the
            table then has the shapes that links return, and parameters get theirs. If the model
            communicates, all its ranks call this.
        kwargs: more of them.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> model = mnpar.Sequential(L.Linear(None, 16), F.relu, L.Linear(16, 3))
        >>> print(mnpar.summary(model, np.zeros((5, 8), "f4")))
        path  link        output   parameters      elements  bytes
        /     Sequential  (5, 3)
        /0    Linear      (5, 16)  W(16, 8) b(16)       144    576
        /1    Linear      (5, 3)   W(3, 16) b(3)         51    204
        on this rank: 195 elements of parameters, 780 bytes
    """
    outputs = _Outputs()
    if args or kwargs:
        with no_backprop_mode(), using_config("train", False), outputs:
            model(*args, **kwargs)
    return ModelSummary(model, outputs.shapes)


def _parameters_of(link: Link) -> tuple[str, int, int]:
    """Return the shapes of a link's own parameters, their elements and bytes."""
    own = [(name, getattr(link, name)) for name in link._params]
    known = [param for _, param in own if param.array is not None]
    shapes = " ".join([f"{name}{_shape_of(param)}" for name, param in own])
    return shapes, sum([p.size for p in known]), sum([p.array.nbytes for p in known])


def _shape_of(param: Parameter) -> str:
    if param.array is None:
        return "?"
    whole = "" if param.whole is None else f" of {_numbers(param.whole)}"
    return _numbers(param.shape) + whole


def _numbers(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def _shapes_of(out: Any) -> str:
    if isinstance(out, Variable):
        return "None" if out.array is None else _numbers(out.shape)
    if isinstance(out, dict):
        out = list(out.values())
    if isinstance(out, tuple | list):
        return ", ".join([_shapes_of(one) for one in out[:3]]) + (", …" if len(out) > 3 else "")
    return type(out).__name__
