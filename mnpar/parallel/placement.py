"""Where the parameters of a model lie on a mesh, and whether that fits together: a wrong combination is an error.

Each rank says what it has: paths, shapes, boxes, digests. From that alone all ranks know, of each parameter and each axis,
whether the axis *replicates* it (all ranks of a line have the same box, and equal values), *divides* it (they have different
boxes) or leaves it to *some* of the ranks (a stage of a pipeline). So nobody has to declare anything twice, and what was meant
otherwise shows: copies that differ, boxes that do not make a whole, layers over ranks that have different samples, gradients
that are parts.

What the sums over ranks count follows from the same table: each element of the model once, however often it is held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.checkpoint.contents import Piece, Record, check_cover
from mnpar.communicators.communicator import Communicator
from mnpar.errors import MismatchError
from mnpar.link import Link
from mnpar.links import MultiNodeBatchNormalization
from mnpar.parallel.mesh import Mesh
from mnpar.parallel.pipeline import Pipeline
from mnpar.parallel.reducer import Among, Reducer
from mnpar.parameter import Parameter
from mnpar.plans import Box

Total = Callable[[Array], Array]


class Held(NamedTuple):
    """What a rank has of a parameter."""

    whole: tuple[int, ...]  # the shape of all of it
    box: Box
    dtype: str
    divided: bool  # whether the parameter says so
    tied: bool  # a pipeline sums its gradients over stages
    digest: bytes


class Table(NamedTuple):
    """What a rank has."""

    params: dict[str, Held]
    staged: tuple[str, ...]  # the axes along which its pipelines run
    wrong: str  # what it can tell alone


class Placement:
    """Where a model's parameters lie on a mesh.

    Args:
        mesh: all its ranks make this, and call its methods.
        summed: the axes over which an optimizer adds up gradients: the ranks along them have samples of their own.

    Attributes:
        kinds: of each parameter of the whole model by its path, for each axis of more than one rank: ``'replicated'``,
            ``'divided'`` or ``'some'``.
    """

    def __init__(self, mesh: Mesh, summed: tuple[str, ...] = ("data",)) -> None:
        self.mesh, self.summed = mesh, mesh.span(summed)
        self.others = tuple([name for name in mesh.span(tuple(mesh.axes)) if name not in self.summed])
        self.data, self.copy = mesh[self.summed], mesh[self.others]  # ranks of equal parts; ranks that have the model together
        self.among: Among = mesh.__getitem__
        self.kinds: dict[str, dict[str, str]] = {}
        self._sums: dict[str, tuple[float, Total]] = {}
        self._tables: list[Table] = []
        self._known: list[tuple[Parameter, tuple[int, ...]]] | None = None

    def stale(self, model: Link) -> bool:
        """Whether the model has other parameters than when they were looked at."""
        now = [(param, param.node.shape) for param in model.params()]
        known = self._known
        same = known is not None and len(known) == len(now)
        return not (same and all([a is b and s == t for (a, s), (b, t) in zip(known or (), now, strict=True)]))

    def settle(self, model: Link, values: bool = True) -> bool:
        """Look at what all ranks have, and tell parameters over which axes their gradients are to be summed.

        Args:
            model: this rank's part of it.
            values: whether copies should be equal already, and be there.

        Returns:
            Whether the ranks along the summed axes have equal copies.

        Raises:
            MismatchError: on all ranks: it does not fit together.
        """
        self._known = [(param, param.node.shape) for param in model.params()] if values else None
        self._tables = self.mesh.comm.allgather_obj(self._table(model))
        for rank, table in enumerate(self._tables):
            if table.wrong:
                raise MismatchError(f"rank {rank} of {self.mesh!s}: {table.wrong}")
        self.kinds, self._sums, equal = {}, {}, True
        for path in dict.fromkeys([path for table in self._tables for path in table.params]):
            holders = {rank: table.params[path] for rank, table in enumerate(self._tables) if path in table.params}
            self._check_form(path, holders)
            self.kinds[path] = {axis: self._kind(path, axis, holders, values) for axis in (*self.summed, *self.others)}
            if values:
                self._check_values(path, holders)
            equal = equal and self._are_equal(path, holders)
        for path in self.kinds:
            for axes in (self.divides(path), self.sums(path), self._counted()):
                self.mesh[axes]  # all ranks make it now, together
        for path, param in model.namedparams(include_uninit=False):
            param.summed = None if self.sums(path) == self.summed else self.sums(path)
        return equal

    def sums(self, path: str) -> tuple[str, ...]:
        """The axes along which the gradients of a parameter are parts: all that are summed, but those that divide it."""
        return tuple([axis for axis in self.summed if self.kinds[path][axis] != "divided"])

    def _counted(self) -> tuple[str, ...]:
        """The axes along which ranks have different parameters, or parts."""
        divide = [axis for kinds in self.kinds.values() for axis in self.summed if kinds[axis] == "divided"]
        return self.mesh.span((*self.others, *divide))

    def _are_equal(self, path: str, holders: dict[int, Held]) -> bool:
        """Whether ranks along the summed axes have equal copies, and all of them have one."""
        if any([self.kinds[path][axis] == "some" for axis in self.summed]):
            return False
        lines = {tuple(self.mesh.line(self.sums(path), rank)): None for rank in holders}
        return all([len({holders[rank].digest for rank in line}) == 1 for line in lines])

    def divides(self, path: str) -> tuple[str, ...]:
        """The axes that divide a parameter."""
        return tuple([axis for axis, kind in self.kinds[path].items() if kind == "divided"])

    # ---- what a rank says ----

    def _table(self, model: Link) -> Table:
        wrong, tied = "", set()
        staged: list[str] = []
        for path, link in model.namedlinks():
            if isinstance(link, Pipeline):
                staged += self.mesh.axes_of(link.line.comm)
                tied |= {id(param) for param in link.tied}
            try:
                wrong = wrong or self._wrong(path, link)
            except ValueError as error:
                wrong = wrong or f"{path}, {type(link).__name__}: {error}"
        params = {path: _held(param, id(param) in tied) for path, param in model.namedparams(include_uninit=False)}
        return Table(params, tuple(dict.fromkeys(staged)), wrong)

    def _wrong(self, path: str, link: Link) -> str:
        """Whether a layer is over ranks that it should not be over."""
        if not type(link).__module__.startswith("mnpar."):
            return ""  # who knows what its communicators are for
        grid = getattr(link, "grid", None)
        whole = [] if grid is None else [grid.comm]  # whose ranks get whole gradients
        hooks = [getattr(hook, "comm", None) for hook in link.local_link_hooks.values()]  # WholeGradients
        whole += [comm for comm in hooks if isinstance(comm, Communicator)]
        whole += [link.line.comm] if isinstance(link, Pipeline) else []
        shares: list[Communicator] = []  # whose ranks get their share, which the optimizer has to sum
        for name, comm in vars(link).items():
            if isinstance(comm, Communicator):
                by_share = name == "comm" if isinstance(link, MultiNodeBatchNormalization) else name == "sequence_comm"
                (shares if by_share and not getattr(link, "whole_gradients", False) else whole).append(comm)
        inside, over = ([axis for comm in comms for axis in self.mesh.axes_of(comm)] for comms in (whole, shares))
        unsummed = [axis for axis in over if axis not in (*inside, *self.summed)]
        summed = [axis for axis in inside if axis in self.summed]
        text = _SHARES.format(unsummed, list(self.summed)) if unsummed else _OVER_DATA.format(summed) if summed else ""
        return f"{path}, {type(link).__name__}: {text}" if text else ""

    # ---- whether it fits ----

    def _check_form(self, path: str, holders: dict[int, Held]) -> None:
        first, one = next(iter(holders.items()))
        for rank, other in holders.items():
            if (other.whole, other.dtype) != (one.whole, one.dtype):
                raise MismatchError(
                    f"{path} is {one.whole} {one.dtype} on rank {first} and {other.whole} {other.dtype} on rank {rank} of "
                    f"{self.mesh!s}: ranks that have a parameter of one path have the same one. (Pipeline.of gives stages the "
                    "paths of the whole model.)"
                )
        pieces = {other.box: Piece(one.dtype, other.box.shape, None, other.box, [rank]) for rank, other in holders.items()}
        try:
            check_cover(Record(path, one.whole, list(pieces.values())))
        except ValueError as error:
            raise MismatchError(f"{self.mesh!s}: {error}") from None

    def _kind(self, path: str, axis: str, holders: dict[int, Held], there: bool) -> str:
        """What an axis does to a parameter; ``there``: all that should have it have it."""
        kinds: dict[str, list[int]] = {}
        for rank in holders:
            line = self.mesh.line((axis,), rank)
            boxes = [holders[other].box for other in line if other in holders]
            several = any([box != boxes[0] for box in boxes])
            if several and len(boxes) < len(line):
                raise MismatchError(
                    f"{path} is divided along {axis!r} among ranks {[r for r in line if r in holders]} of {self.mesh!s}, but "
                    f"ranks {[r for r in line if r not in holders]} have no part: a part without elements is one too"
                )
            kinds.setdefault("divided" if several else "some" if len(boxes) < len(line) else "replicated", line)
        kind = next(kind for kind in ("some", "divided", "replicated") if kind in kinds)
        if kind == "some" and axis in self.summed and there:
            raise MismatchError(
                f"{path} is on {[r for r in kinds[kind] if r in holders]} only, of ranks {kinds[kind]} of {self.mesh!s}, along "
                f"{axis!r}, whose ranks have samples of their own, and copies or parts of the same parameters: their gradients "
                "are added up"
            )
        return kind

    def _check_values(self, path: str, holders: dict[int, Held]) -> None:
        for ranks in self._copies(holders).values():
            first = holders[ranks[0]]
            for rank in ranks[1:]:
                axes = self.mesh.differ([ranks[0], rank])
                staged = [axis for axis in axes if axis in self._tables[rank].staged]
                if staged and not (first.tied and holders[rank].tied):
                    raise MismatchError(_UNTIED.format(path, [ranks[0], rank], self.mesh, staged[0]))
                if holders[rank].digest != first.digest:
                    raise MismatchError(_DIFFER.format(path, [ranks[0], rank], self.mesh, " and ".join(map(repr, axes))))

    def _copies(self, holders: dict[int, Held]) -> dict[Box, list[int]]:
        """The ranks that have each box."""
        found: dict[Box, list[int]] = {}
        for rank, held in holders.items():
            found.setdefault(held.box, []).append(rank)
        return found

    # ---- sums over ranks ----

    def equip(self, optimizer: Any, sharded: bool, reducer: Reducer) -> None:
        """Let an optimizer and its rules count each element of the model once; ``sharded``: they step with pieces of it."""
        axes = tuple(self.mesh.axes) if sharded else self._counted()
        optimizer.total, optimizer.spread = _summing(None, self.mesh[axes], 1.0), True
        for path, param in optimizer.target.namedparams(include_uninit=False):
            rule = param.update_rule
            if rule is None or path not in self.kinds:
                continue
            if path not in self._sums:
                pieces = reducer.channel_of(param.summed) if sharded else None
                apart = tuple([axis for axis in axes if not (sharded and axis in self.sums(path))])
                divides = self.divides(path)
                self._sums[path] = self._share(path, apart), _summing(pieces, self.mesh[divides], self._share(path, divides))
            rule.share, rule.total = self._sums[path]

    def _share(self, path: str, axes: tuple[str, ...]) -> float:
        """One over the number of ranks, of those that differ on some axes only, that have what this one has of a parameter."""
        mine = self._tables[self.mesh.comm.rank].params[path].box
        tables = [self._tables[rank].params for rank in self.mesh.line(axes, self.mesh.comm.rank)]
        return 1 / sum([path in params and params[path].box == mine for params in tables])

    # ---- gradients ----

    def compare(self, model: Link, update: int) -> None:
        """Whether ranks that have the same of a parameter have the same gradient of it, and still the same values.

        Raises:
            MismatchError: they have not; on all ranks that have the model together.
        """
        named = [(path, param) for path, param in model.namedparams(include_uninit=False) if path in self.kinds]
        mine = np.array([[*_signature(param.array), *_signature(param.grad)] for _, param in named]).reshape(len(named), 8)
        ranks = self.mesh.line(self.others, self.mesh.comm.rank)
        rows = dict(zip(ranks, self.copy.allgather(mine), strict=True))
        index = {rank: {path: i for i, path in enumerate(self._tables[rank].params)} for rank in ranks}
        for path in self.kinds:
            holders = {rank: self._tables[rank].params[path] for rank in ranks if path in self._tables[rank].params}
            for same in self._copies(holders).values():
                for rank in same[1:]:
                    one, other = (rows[r][index[r][path]] for r in (same[0], rank))
                    self._judge(path, [same[0], rank], one, other, np.dtype(holders[rank].dtype), update, rows[rank])

    def _judge(self, path: str, ranks: list[int], one: Array, other: Array, dtype: Any, update: int, rows: Array) -> None:
        eps = float(np.finfo(dtype).eps) if dtype.kind in "fc" else 1e-3
        for what, start in (("gradient", 4), ("value", 0)):
            a, b = one[start : start + 4], other[start : start + 4]
            typical = np.nanmax(rows[:, start + 2] / np.maximum(rows[:, start + 3], 1))  # the largest mean size
            allowed = min(eps**0.5, 0.05) * max(a[2], b[2]) * 7 + 100 * eps * typical * b[3]
            if (abs(a[:3] - b[:3]) > allowed).any():  # NaN is another's business
                axes = " and ".join(map(repr, self.mesh.differ(ranks)))
                remedy = _PARTIAL if what == "gradient" else _DRIFTED
                raise MismatchError(
                    f"update {update + 1}: the {what}s of {path} are not the same on ranks {ranks} of {self.mesh!s}, which "
                    f"have the same of it and differ along {axes}: they add up to {a[0]:.6g} and {b[0]:.6g}. {remedy}"
                )


def _held(param: Parameter, tied: bool) -> Held:
    digest = hashlib.blake2b(np.ascontiguousarray(backend.to_host(param.array)).reshape(-1).view(np.uint8).data, digest_size=16)
    whole, box = (param.shape, Box.whole(param.shape)) if param.box is None or param.whole is None else (param.whole, param.box)
    return Held(tuple(whole), box, param.dtype.name, param.box is not None, tied, digest.digest())


def _summing(pieces: Communicator | None, comm: Communicator, share: float) -> Total:
    """Numbers added up over the ranks that have pieces, then over those that have parts, of which each gives its share."""

    def total(values: Array) -> Array:
        values = np.asarray(values, np.float64)
        if pieces is not None:
            values = pieces.allreduce(values)
        return values if comm.size == 1 else comm.allreduce(np.asarray(values * share))

    return total


def _signature(x: Array) -> Iterator[float]:
    """A few numbers that differ where arrays do: sums with two patterns of weights, the size of the elements, their number."""
    if x is None:
        return iter((0.0,) * 4)
    xp = backend.get_array_module(x)
    flat = x.reshape(-1)
    flat = (flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat).astype(np.float64)
    weights = xp.arange(flat.size) % 13 - 6.0
    return iter([float(flat.sum()), float(flat.dot(weights)), float(abs(flat).sum()), float(flat.size)])


_SHARES = (
    "it is over ranks along {}, where its gradients are each rank's share, and only those along {} are added up: give the "
    "optimizer these axes too, create_multi_node_optimizer(…, axes=…), or let the layer make its gradients whole (over blocks: "
    "SpatialBatchNormalization(grid, comm=…), MultiHeadAttention(whole_gradients=True))"
)
_OVER_DATA = (
    "it is divided among ranks along {}, which have samples of their own: give it a communicator of the other axes, such as "
    "mesh.model"
)
_UNTIED = (
    "{} is on ranks {} of {!s}, in several stages along {!r}, and nothing adds their gradients up: name it in "
    "Pipeline.of(tied=…) or Pipeline(shared=…); other parameters need other paths, as Pipeline.of gives them"
)
_DIFFER = (
    "{} is not the same on ranks {} of {!s}, which differ along {}: draw the weights by initialize_by_path, or after "
    "mnpar.random.seed with one seed on these ranks; a part of a parameter has whole and box"
)
_PARTIAL = (
    "So each has the gradient of its own use of it only: use a layer that takes the communicator of this axis, or let the "
    "parameter pass F.copy_to(comm, parameter) before it is used"
)
_DRIFTED = "They have drifted apart: something is different on these ranks that should not be, such as random numbers"
