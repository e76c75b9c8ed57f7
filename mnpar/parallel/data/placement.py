"""The places of a model's parameters on a mesh, and whether that fits together: a wrong
combination is an error.

Each rank says what it has: paths, shapes, boxes, digests. From that alone all ranks know, of each
parameter and each axis, whether the axis *replicates* it (all ranks of a line have the same box,
and equal values), *divides* it (they have different boxes) or leaves it to *some* of the ranks (a
stage of a pipeline). So nobody has to declare anything twice, and what was meant otherwise shows:
copies that differ, boxes that do not make a whole, layers over ranks that have different samples,
gradients that are parts.

Sums over ranks, such as squares of norms, count each element of the model once, however often it is
held: that follows from the same table, by which the optimizer and its parameters get the records
that links give them where there is no mesh (optimizers/model_holders.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.checkpoint.manifest import Record, StoredPiece, check_cover
from mnpar.communicators.communicator import Communicator, described
from mnpar.errors import MismatchError
from mnpar.holders import Holders, Share
from mnpar.link import Link
from mnpar.links.divided import BoxInitializer, digest_of
from mnpar.optimizers import GradientMethod
from mnpar.optimizers.model_holders import Level, ModelHolders, SumPlan
from mnpar.parallel.data.reducer import Among
from mnpar.parallel.mesh import NOTE, Mesh
from mnpar.parameter import Parameter, structure
from mnpar.plans import Box


class Description(NamedTuple):
    """A rank's part of a parameter."""

    whole: tuple[int, ...]  # the shape of the whole parameter
    box: Box  # the part of it that the rank has
    dtype: str
    divided: bool  # whether the parameter itself names a box
    tied: bool  # a pipeline sums its gradients over stages
    alone: tuple[str, ...]  # the axes along which one rank of each line has it, as experts are
    digest: bytes  # of its values
    # of the values of the whole parameter, if the rank's are still those that were drawn
    drawn: bytes


class Table(NamedTuple):
    """The description of its model that a rank tells the others."""

    params: dict[str, Description]  # by path
    staged: tuple[str, ...]  # the axes along which there are stages
    wrong: str  # the error that it has found without the others; empty if there is none


class Placement:
    """The places of a model's parameters on a mesh.

    Args:
        mesh: all its ranks make this, and call its methods.
        summed: the axes over which an optimizer adds up gradients: the ranks along them have
            samples of their own.

    Attributes:
        kinds: of each parameter of the whole model by its path, for each axis of more than one
            rank: ``'replicated'``, ``'divided'``, ``'some'`` or ``'alone'``: on one rank of each
            line, which hears of the samples of all.
        tables: what each rank has, by the mesh's numbers of ranks.
    """

    def __init__(self, mesh: Mesh, summed: tuple[str, ...] = ("data",)) -> None:
        if not isinstance(mesh, Mesh):
            raise TypeError(f"Placement(mesh): a Mesh is needed where {described(mesh)} was given")
        self.mesh = mesh
        self.summed = mesh.span(summed)
        self.others = tuple(
            [name for name in mesh.span(tuple(mesh.axes)) if name not in self.summed]
        )
        self.data = mesh[self.summed]  # ranks of equal parts
        self.copy = mesh[self.others]  # ranks that have the model together
        self.among: Among = mesh.__getitem__
        self.kinds: dict[str, dict[str, str]] = {}
        self._holders: dict[str, Holders] = {}
        # ``structure.now`` when an optimizer was told, and who it was
        self._equipped: tuple[object, object] = (None, None)
        # weights that stages share, in one order on all ranks
        self._tied: list[tuple[Communicator, Parameter]] = []
        self._uneven: tuple[str, ...] = ()  # axes along which ranks have parts of other sizes
        self.tables: list[Table] = []
        self._known: list[tuple[Parameter, tuple[int, ...]]] | None = None

    def is_stale(self, model: Link) -> bool:
        """Return whether the model has other parameters than when they were looked at."""
        now = [(param, param.node.shape) for param in model.params()]
        known = self._known
        same = known is not None and len(known) == len(now)
        return not (
            same
            and all([a is b and s == t for (a, s), (b, t) in zip(known or (), now, strict=True)])
        )

    def settle(self, model: Link, values: bool = True) -> bool:
        """Look at what all ranks have, and tell parameters over which axes their gradients are to
        be summed.

        Args:
            model: this rank's part of it.
            values: whether copies should be equal already, and be there.

        Returns:
            Whether the ranks along the summed axes have equal copies.

        Raises:
            MismatchError: on all ranks: it does not fit together.
        """
        self._known = [(param, param.node.shape) for param in model.params()] if values else None
        self.tables = self.mesh.comm.allgather_obj(self._table(model))
        for rank, table in enumerate(self.tables):
            if table.wrong:
                raise MismatchError(f"rank {rank} of {self.mesh!s}: {table.wrong}")
        self.kinds, self._holders, equal = {}, {}, True
        self._equipped = None, None
        for path in dict.fromkeys([path for table in self.tables for path in table.params]):
            holders = {
                rank: table.params[path]
                for rank, table in enumerate(self.tables)
                if path in table.params
            }
            self._check_form(path, holders)
            self.kinds[path] = {
                axis: self._kind(path, axis, holders, values)
                for axis in (*self.summed, *self.others)
            }
            if values:
                self._check_values(path, holders)
            equal = equal and self._are_equal(path, holders)
        self._uneven = tuple([axis for axis in self.others if self._is_uneven(axis)])
        for path in self.kinds:
            for axes in (self.divides(path), self.sums(path), self._counted(), self._apart(path)):
                self.mesh[axes]  # all ranks make it now, together
        for path, param in model.namedparams(include_uninit=False):
            param.summed = None if self.sums(path) == self.summed else self.sums(path)
        self._tied = [pair for link in model.links() for pair in link.gradient_comms().tied]
        return equal

    def sums(self, path: str) -> tuple[str, ...]:
        """Return the axes along which the gradients of a parameter are parts: all summed ones along
        which there are copies.
        """
        return tuple(
            [axis for axis in self.summed if self.kinds[path][axis] not in ("divided", "alone")]
        )

    def _counted(self) -> tuple[str, ...]:
        """Return the axes along which ranks have different parameters, or parts."""
        divide = [
            axis
            for kinds in self.kinds.values()
            for axis in self.summed
            if kinds[axis] in ("divided", "alone")
        ]
        return self.mesh.span((*self.others, *divide))

    def _are_equal(self, path: str, holders: dict[int, Description]) -> bool:
        """Return whether ranks along the summed axes have equal copies, and all of them have
        one.
        """
        if any([self.kinds[path][axis] == "some" for axis in self.summed]):
            return False
        lines = {tuple(self.mesh.line(self.sums(path), rank)): None for rank in holders}
        return all([len({holders[rank].digest for rank in line}) == 1 for line in lines])

    def divides(self, path: str) -> tuple[str, ...]:
        """Return the axes that divide a parameter."""
        return tuple([axis for axis, kind in self.kinds[path].items() if kind == "divided"])

    def _is_uneven(self, axis: str) -> bool:
        sizes = [[held.box.volume for held in table.params.values()] for table in self.tables]
        staged = any([axis in table.staged for table in self.tables])
        return not staged and any(
            [sizes[rank] != sizes[self.mesh.line((axis,), rank)[0]] for rank in range(len(sizes))]
        )

    def _apart(self, path: str) -> tuple[str, ...]:
        """Return the axes that divide a parameter, or along which its copies are cut into other
        pieces: sums over these are rounded in other ways, and the copies would drift apart by the
        last digit.
        """
        kinds = self.kinds[path].items()
        return tuple(
            [
                axis
                for axis, kind in kinds
                if kind == "divided" or (kind == "replicated" and axis in self._uneven)
            ]
        )

    # ---- what a rank says ----

    def _table(self, model: Link) -> Table:
        wrong, tied = "", set()
        alone: dict[int, tuple[str, ...]] = {}
        staged: list[str] = []
        for path, link in model.namedlinks():
            comms = link.gradient_comms()
            tied |= {id(param) for _, param in comms.tied}
            try:
                wrong = wrong or self._wrong(path, link)
                for comm in comms.stages:
                    staged += self.mesh.axes_of(comm)
                for comm in [comm for comm in comms.parts if comm in comms.partial]:
                    alone |= dict.fromkeys(map(id, link.params()), self.mesh.axes_of(comm))
            except ValueError as error:
                wrong = wrong or f"{path}, {type(link).__name__}: {error}"
        named = model.namedparams(include_uninit=False)
        params = {
            path: describe(param, id(param) in tied, alone.get(id(param), ()))
            for path, param in named
        }
        return Table(params, tuple(dict.fromkeys(staged)), wrong)

    def _wrong(self, path: str, link: Link) -> str:
        """Return what is wrong if a layer is over ranks that it should not be over."""
        comms = link.gradient_comms()
        inside, over = (
            [axis for comm in some for axis in self.mesh.axes_of(comm)]
            for some in ((*comms.summed, *comms.averaged), comms.partial)
        )
        unsummed = [axis for axis in over if axis not in (*inside, *self.summed)]
        summed = [axis for axis in inside if axis in self.summed]
        text = (
            _SHARES.format(unsummed, list(self.summed))
            if unsummed
            else _OVER_DATA.format(summed)
            if summed
            else ""
        )
        return f"{path}, {type(link).__name__}: {text}" if text else ""

    # ---- whether it fits ----

    def _check_form(self, path: str, holders: dict[int, Description]) -> None:
        first, one = next(iter(holders.items()))
        for rank, other in holders.items():
            if (other.whole, other.dtype) != (one.whole, one.dtype):
                raise MismatchError(
                    f"{path} is {one.whole} {one.dtype} on rank {first} and {other.whole} "
                    f"{other.dtype} on rank {rank} of "
                    f"{self.mesh!s}: ranks that have a parameter of one path have the same "
                    "one. (Pipeline.of gives stages the "
                    "paths of the whole model.)"
                )
        pieces = {
            other.box: StoredPiece(one.dtype, other.box.shape, None, other.box, [rank])
            for rank, other in holders.items()
        }
        try:
            check_cover(Record(path, one.whole, list(pieces.values())))
        except ValueError as error:
            raise MismatchError(f"{self.mesh!s}: {error}") from None

    def _kind(self, path: str, axis: str, holders: dict[int, Description], there: bool) -> str:
        """Return how an axis places a parameter (see ``kinds``). ``there``: whether each rank that
        should have it has it by now.
        """
        kinds: dict[str, list[int]] = {}
        for rank in holders:
            line = self.mesh.line((axis,), rank)
            boxes = [holders[other].box for other in line if other in holders]
            several = any([box != boxes[0] for box in boxes])
            if several and len(boxes) < len(line):
                raise MismatchError(
                    f"{path} is divided along {axis!r} among ranks "
                    f"{[r for r in line if r in holders]} of {self.mesh!s}, but "
                    f"ranks {[r for r in line if r not in holders]} have no part: a part "
                    f"without elements is one too{NOTE}"
                )
            kinds.setdefault(
                "divided" if several else "some" if len(boxes) < len(line) else "replicated", line
            )
        kind = next(kind for kind in ("some", "divided", "replicated") if kind in kinds)
        if kind == "some" and all([axis in held.alone for held in holders.values()]):
            return "alone"
        if kind == "some" and axis in self.summed and there:
            raise MismatchError(
                f"{path} is on {[r for r in kinds[kind] if r in holders]} only, of ranks "
                f"{kinds[kind]} of {self.mesh!s}, along "
                f"{axis!r}, whose ranks have samples of their own, and copies or parts of the "
                "same parameters: their gradients "
                "are added up"
            )
        return kind

    def _check_values(self, path: str, holders: dict[int, Description]) -> None:
        drawn = {
            held.drawn: rank
            for rank, held in reversed(holders.items())
            if held.drawn and held.box.volume
        }
        if len(drawn) > 1:
            ranks = sorted(drawn.values())[:2]
            raise MismatchError(
                _DRAWN.format(
                    path, ranks, self.mesh, " and ".join(map(repr, self.mesh.differ(ranks)))
                )
                + NOTE
            )
        for ranks in self.copies(holders).values():
            first = holders[ranks[0]]
            for rank in ranks[1:]:
                axes = self.mesh.differ([ranks[0], rank])
                staged = [axis for axis in axes if axis in self.tables[rank].staged]
                if staged and not (first.tied and holders[rank].tied):
                    raise MismatchError(
                        _UNTIED.format(path, [ranks[0], rank], self.mesh, staged[0])
                    )
                if holders[rank].digest != first.digest:
                    raise MismatchError(
                        _DIFFER.format(
                            path, [ranks[0], rank], self.mesh, " and ".join(map(repr, axes))
                        )
                        + NOTE
                    )

    def copies(self, holders: dict[int, Description]) -> dict[Box, list[int]]:
        """Return the ranks that have each box."""
        found: dict[Box, list[int]] = {}
        for rank, held in holders.items():
            found.setdefault(held.box, []).append(rank)
        return found

    # ---- sums over ranks ----

    def equip(self, optimizer: GradientMethod) -> None:
        """Tell an optimizer who holds its model, and its parameters who has their other parts."""
        now = structure.now, optimizer
        if self._equipped == now:
            return
        params = [
            (path, param)
            for path, param in optimizer.target.namedparams(include_uninit=False)
            if path in self.kinds
        ]
        for path, param in params:
            if path not in self._holders:
                self._holders[path] = Holders(
                    tuple(self._share_of(path, self.divides(path))),
                    tuple(self._share_of(path, self._apart(path))),
                )
            if param.holders is not self._holders[path]:
                param.holders = self._holders[path]
        axes = self._counted()
        comm = self.mesh[axes]
        counts = [not self._before(path, axes) for path, _ in params]
        plan = SumPlan(
            [Level(comm, np.array(counts, bool), [])],
            frozenset(self.mesh.comm.transport.world_ranks),
            [path for path, _ in params],
            0.0,
        )
        model, everyone = optimizer.target, self.mesh.comm
        optimizer.hold(ModelHolders.of_mesh(model, params, everyone, comm, plan))
        self._equipped = now

    def asks(self, optimizer: Any) -> bool:
        """Return whether this rank's steps with pieces may sum norms of weights that stages share:
        rules and hooks that go element by element do not.
        """
        rules = [param.update_rule for _, param in self._tied if param.update_rule is not None]
        hooks = [*optimizer.hooks, *[hook for rule in rules for hook in rule.hooks]]
        return bool(rules) and not all(
            [getattr(one, "elementwise", False) for one in (*rules, *hooks)]
        )

    def agree(self, asked: bool) -> None:
        """Make weights that stages share equal after a step with pieces: stages have cut them
        elsewhere, and rounded their norms in other ways.

        ``asked``: whether any rank's step sums such norms; all ranks of the mesh have the same.
        """
        for comm, param in self._tied if asked else ():
            backend.copyto(param.array, comm.bcast(param.array))

    def _share_of(self, path: str, axes: tuple[str, ...]) -> Iterator[Share]:
        """Yield the ranks that differ on some axes only, if there are others, with this rank's
        weight: one over the number of those that have what it has of a parameter.
        """
        comm = self.mesh[axes]
        if comm.size > 1:
            yield Share(comm, 1 / len(self._with_same(path, axes)))

    def _with_same(self, path: str, axes: tuple[str, ...]) -> list[int]:
        """Return the ranks, of those that differ on some axes only, that have what this one has of
        a parameter.
        """
        mine = self.tables[self.mesh.comm.rank].params[path].box
        line = self.mesh.line(axes, self.mesh.comm.rank)
        params = {rank: self.tables[rank].params for rank in line}
        return [rank for rank in line if path in params[rank] and params[rank][path].box == mine]

    def _before(self, path: str, axes: tuple[str, ...]) -> bool:
        """Return whether a lower rank, of those that differ on some axes only, has what this one
        has of a parameter.
        """
        return self._with_same(path, axes)[0] < self.mesh.comm.rank


def describe(param: Parameter, tied: bool, alone: tuple[str, ...]) -> Description:
    """Describe this rank's part of a parameter; ``tied`` and ``alone`` as :class:`Description` has
    them.
    """
    digest, first = digest_of(param.array), param.initializer
    drawn = first.whole_of(digest) if isinstance(first, BoxInitializer) else b""
    whole, box = (
        (param.shape, Box.whole(param.shape))
        if param.box is None or param.whole is None
        else (param.whole, param.box)
    )
    return Description(
        tuple(whole), box, param.dtype.name, param.box is not None, tied, alone, digest, drawn
    )


_SHARES = (
    "it is over ranks along {}, where its gradients are each rank's share, and only those "
    "along {} are added up: give the "
    "optimizer these axes too, create_multi_node_optimizer(…, axes=…), or let the layer make "
    "its gradients whole (over blocks: "
    "MultiNodeBatchNormalization(…, blocks=…), MultiHeadAttention(whole_gradients=True))"
)

_OVER_DATA = (
    "it is divided among ranks along {}, which have samples of their own: give it a "
    "communicator of the other axes, such as "
    "mesh.model, or let it leave each rank its share, MixtureOfExperts(…, "
    "input_is_parallel=True, whole_gradients=False)"
)

_UNTIED = (
    "{} is on ranks {} of {!s}, in several stages along {!r}, and nothing adds their gradients "
    "up: name it in "
    "Pipeline.of(tied=…) or Pipeline(shared=…); other parameters need other paths, as "
    "Pipeline.of gives them"
)

_DRAWN = (
    "ranks {1} of {2!s}, which differ along {3}, have drawn their parts of {0} from different "
    "whole arrays, so that it is not "
    "that of one process: draw the weights by initialize_by_path, or after mnpar.random.seed "
    "with one seed on these ranks"
)

_DIFFER = (
    "{} is not the same on ranks {} of {!s}, which differ along {}: draw the weights by "
    "initialize_by_path, or after "
    "mnpar.random.seed with one seed on these ranks; a part of a parameter has whole and box"
)
