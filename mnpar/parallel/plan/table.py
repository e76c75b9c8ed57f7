"""The plan of a model as a table: who has which parameter, and what travels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mnpar.communicators.communicator import described
from mnpar.link import Link
from mnpar.parallel.mesh import Mesh
from mnpar.parallel.plan.divisions import division_of
from mnpar.parameter import Parameter
from mnpar.plans import Box


class PlanRow(NamedTuple):
    """One parameter of a rank.

    Attributes:
        path: of the parameter.
        whole: the shape of the whole one; None: not known yet.
        box: what this rank has of it; None: not known yet.
        ranks: those of the mesh that have the same box, this one included.
        forward, backward: what the parameter's link sends.
    """

    path: str
    whole: tuple[int, ...] | None
    box: Box | None
    ranks: tuple[int, ...]
    forward: str
    backward: str


class PlanTable(tuple[PlanRow, ...]):
    """The rows of a plan, of one rank; printing shows a table.

    Attributes:
        head: the mesh and the rank.
    """

    head: str

    def __str__(self) -> str:
        rows = [("parameter", "whole", "here", "ranks with the same", "forward", "backward")]
        before = ("", "")
        for row in self:
            sends = row.forward or "–", row.backward or "–"
            rows.append(
                (
                    row.path,
                    "?" if row.whole is None else str(row.whole),
                    _places(row),
                    ", ".join(map(str, row.ranks)),
                    *(sends if sends != before or sends[0] == "–" else ('"', '"')),
                )
            )
            before = sends
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([cell.ljust(n) for cell, n in zip(row, widths, strict=True)]).rstrip()
            for row in rows
        ]
        return "\n".join([self.head, *lines])

    __repr__ = __str__


def _places(row: PlanRow) -> str:
    if row.whole is None or row.box is None:
        return "?"
    if row.box == Box.whole(row.whole):
        return "all"
    if not row.box.volume:
        return "nothing"
    ends = zip(row.box.start, row.box.stop, row.whole, strict=True)
    return ", ".join([":" if (a, b) == (0, n) else f"{a}:{b}" for a, b, n in ends])


def plan_of(model: Any, mesh: Mesh | None = None) -> PlanTable:
    """Return the plan of a divided model as a table of this rank's parameters. Nothing is sent.

    Args:
        model: divided by :func:`mnpar.parallelize`, or written for a mesh.
        mesh: its ranks; None: those of parallelize.

    Returns:
        A tuple of :class:`mnpar.parallel.PlanRow`, which prints itself as a table: each
        parameter's path, the shape of the whole, the part of this rank, the ranks of the mesh
        that have the same part, and what its link sends forward and backward.

    Raises:
        ValueError: the model was not divided by parallelize, and no mesh is given.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> def program(comm):
        ...     mnpar.random.seed(0)
        ...     mesh = mnpar.Mesh(comm, data=2, model=2)
        ...     model = mnpar.parallelize(mnpar.Chain(fc=L.Linear(4, 3)), mesh, {"fc": "rows"})
        ...     row = mnpar.plan_of(model)[0]
        ...     return row.path, row.whole, row.box.shape, row.ranks
        >>> mnpar.run(program, ranks=4)[0]
        ('/fc/W', (3, 4), (3, 2), (0, 2))
    """
    if not isinstance(model, Link):
        raise TypeError(f"plan_of(model) takes a link, not {type(model).__name__}")
    plan = vars(model).get("_plan")
    mesh = plan.mesh if mesh is None and plan is not None else mesh
    if not isinstance(mesh, Mesh):
        if mesh is not None:
            raise TypeError(
                f"plan_of(model, mesh): a Mesh is needed where {described(mesh)} was given"
            )
        raise ValueError(
            "the model was not divided by mnpar.parallelize: plan_of(model, mesh) says its mesh"
        )
    table = PlanTable(_rows(model, mesh))
    table.head = f"{mesh!s}: rank {mesh.comm.rank}" if mesh.axes else "one rank"
    return table


def _rows(model: Link, mesh: Mesh) -> Iterator[PlanRow]:
    seen: set[int] = set()
    divided = _divided(model, mesh)
    for path, link in model.namedlinks():
        divisions = division_of(link)
        forward = _joined([one.forward(link) for one in divisions])
        backward = [one.backward(link) for one in divisions]
        for name, param in link._named_own():
            if id(param) in seen:
                continue
            seen.add(id(param))
            axes = ["pipe", *divided.get(id(param), ())]
            copies = mesh.span(tuple([axis for axis in mesh.axes if axis not in axes]))
            summed = [axis for axis in ("data", "sequence") if axis in copies]
            sums = [f"the sum of gradients over {' and '.join(summed)}"] if summed else []
            yield PlanRow(
                path.rstrip("/") + name,
                _whole(param),
                _box(param),
                tuple(mesh.line(copies, mesh.comm.rank)),
                forward,
                _joined([*backward, *sums]),
            )


def _joined(texts: list[str]) -> str:
    return "; ".join([text for text in texts if text])


def _divided(model: Link, mesh: Mesh) -> dict[int, tuple[str, ...]]:
    """Return the axes along which ranks have other parts of parameters, or other ones of them."""
    found: dict[int, tuple[str, ...]] = {}
    for _, link in model.namedlinks():
        for comm in link.gradient_comms().parts:
            axes = mesh.axes_of(comm)
            inside = [*link.params()] if not vars(link).get("_params") else []
            for param in [*inside, *[p for p in link.params() if p.box is not None]]:
                found[id(param)] = axes
    return found


def _whole(param: Parameter) -> tuple[int, ...] | None:
    if param.whole is not None:
        return tuple(param.whole)
    return tuple(param.shape) if param.is_initialized else None


def _box(param: Parameter) -> Box | None:
    if param.box is not None:
        return param.box
    return Box.whole(param.shape) if param.is_initialized else None
