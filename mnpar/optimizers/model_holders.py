"""Sums over the ranks that hold an optimizer's model together, in which each element of the model
counts once; and over those that hold one parameter.

Who holds what is said by the links in the optimizer's target (:meth:`mnpar.Link.gradient_comms`):

* Ranks of a stage's communicator (a pipeline, a MultiNodeChainList) have links of their own. All
  their parameters are different ones, but for tied weights.
* Ranks of any other communicator run one program. What they have under one path is one parameter;
  it is divided where it has a box, and only some ranks have it where it belongs to an expert or to
  a member of an ensemble.

At the first sum the ranks tell each other what they have. From then on a rank counts what no lower
rank has a copy of, and a sum is one message of a few numbers over each communicator. The message
also shows whether that is still so, and whether copies give the same number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.autograd.tape import current_tape
from mnpar.backend import Array
from mnpar.configuration import is_debugging
from mnpar.errors import MismatchError
from mnpar.holders import Holders, Share
from mnpar.link import GradientComms, Link
from mnpar.parameter import Parameter, structure

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator

Ranks = tuple[int, ...]
_NO_COMMS = GradientComms()
# how far numbers of copies may differ: ranks with other processors add up in other orders
TOLERANCE = 1e-4


class Level(NamedTuple):
    """A sum over one communicator.

    Args:
        comm: its ranks add up.
        counts: of each parameter of this rank, whether it is this rank that counts it.
        common: the places of those parameters of which all ranks have copies, in one order.
        first: whether no lower rank adds the same sum of what was added up before.
        stamps: of each rank, what it had when they told each other; empty: that is checked
            elsewhere.
    """

    comm: Communicator
    counts: Array
    common: list[int]
    first: bool = True
    stamps: tuple[float, ...] = ()


class SumPlan(NamedTuple):
    """The sums by which all ranks get a number of the whole model.

    Args:
        levels: one after the other.
        ranks: all that take part, by their numbers in the world.
        names: of each parameter of this rank a name that it has on all ranks, and no other
            parameter has; empty where paths do not tell.
        stamp: of what this rank had when it was made.
    """

    levels: list[Level]
    ranks: frozenset[int]
    names: list[str]
    stamp: float


class ModelHolders:
    """The ranks that hold the parameters of a model together.

    Args:
        model: the target of an optimizer.
        comms: over which sums go, unless another one is given: those of stages and parts.
        alike: communicators whose ranks run one program, so that what they have under one path is
            one parameter.
        in_step: those of them over which backward makes gradients whole, or leaves shares: their
            ranks update together.
        tied: parameters that stages share, by ``id``: the ranks that have one, and its number among
            theirs.

    Attributes:
        on_mesh: whether it is known from a mesh.
        seen: else it holds as long as ``structure.now`` is this object.
    """

    def __init__(
        self,
        model: Link,
        comms: list[Communicator],
        alike: list[Communicator],
        in_step: list[Communicator],
        tied: dict[int, tuple[Ranks, int]],
    ) -> None:
        self.seen: object = structure.now
        self.on_mesh = False
        self.model = model
        self.comms = widest(comms)
        self.alike = [comm for comm in alike if comm.size > 1]
        self.in_step = widest(in_step)
        self._tied = tied
        # what the ranks have told each other, by the ranks of the communicator
        self._plans: dict[Ranks, SumPlan] = {}
        self._levels: dict[Ranks, Level] = {}

    @cached_property
    def params(self) -> list[tuple[str, Parameter]]:
        """The parameters that have arrays, with their paths."""
        return list(self.model.namedparams(include_uninit=False))

    @cached_property
    def _rows(self) -> list[_Row]:
        return [
            (
                path,
                None if param.box is None else (param.box.start, param.box.stop),
                self._tied.get(id(param)),
            )
            for path, param in self.params
        ]

    @cached_property
    def _stamp(self) -> float:
        """A number of all that this rank tells the others, which a float holds exactly."""
        facts = self._rows, [ranks_of(comm) for comm in (*self.comms, *self.alike)]
        return _number_of(repr(facts))

    @classmethod
    def of(
        cls, model: Link, copies: Communicator | None, before: ModelHolders | None
    ) -> ModelHolders:
        """Return what the links in a model know; tell divided parameters which ranks have their
        other parts.

        Args:
            model: the target of an optimizer.
            copies: ranks that have copies of all of it, and samples of their own; None: none.
            before: what was known when the model had other parameters, perhaps.
        """
        alike: dict[Ranks, Communicator] = {}
        apart: list[Communicator] = []
        in_step: list[Communicator] = []
        tied: dict[int, tuple[Ranks, int]] = {}
        for link in reversed(list(model.links())):  # links in links first
            comms = link.gradient_comms()
            if comms == _NO_COMMS:
                continue
            apart += [*comms.parts, *comms.stages]
            whole_or_shares = [*comms.summed, *comms.partial]
            in_step += [comm for comm in whole_or_shares if comm not in comms.stages]
            for comm in (*whole_or_shares, *comms.averaged, *comms.parts):
                if comm not in comms.stages:
                    alike.setdefault(ranks_of(comm), comm)
            for comm, param in comms.tied:
                ranks = ranks_of(comm)
                tied[id(param)] = ranks, sum([ranks == others for others, _ in tied.values()])
            parts = tuple([Share(comm) for comm in comms.parts if comm.size > 1])
            for param in [link.__dict__[name] for name in link._params if parts]:
                if param.box is not None:
                    param.holders = Holders(parts, parts)
        if copies is not None:
            alike.setdefault(ranks_of(copies), copies)
        held = cls(model, apart, [*alike.values()], in_step, tied)
        if before is not None and not before.on_mesh:
            held._plans, held._levels = before._plans, before._levels
        return held

    @classmethod
    def of_mesh(
        cls,
        model: Link,
        params: list[tuple[str, Parameter]],
        everyone: Communicator,
        comm: Communicator,
        plan: SumPlan,
    ) -> ModelHolders:
        """Return what the ranks of a mesh know.

        Args:
            model: of this rank.
            params: its parameters, with their paths.
            everyone: all ranks of the mesh.
            comm: those that have other parameters, or parts.
            plan: of sums over these.
        """
        held = cls(model, [comm], [everyone], [], {})
        held.params, held.on_mesh = params, True
        held._plans[()] = plan
        return held

    # ---- sums ----

    def total(
        self,
        function: Callable[[Parameter], Any],
        comm: Communicator | None,
        who: str,
        settings: tuple[float, ...] = (),
    ) -> float:
        """Return what :meth:`mnpar.Optimizer.sum_over_model` does."""
        if comm is None:
            self.check_crossed(who)
            for _, param in self.params:
                param.check_parts_known(who)
        elif self.on_mesh:
            raise ValueError(
                f"{who} needs no comm where the optimizer has a mesh: its sums are of the whole "
                "model"
            )
        else:
            self.check_comm(comm, who)
        values = to_numbers([function(param) for _, param in self.params])
        for channel, places in self._pieces().items():
            values[places] = channel.allreduce(values[places])
        if not self.comms and (comm is None or comm.size == 1):
            return float(values.sum())
        while True:
            total = self._add_up(values, self._plan(comm), who, settings)
            if total is not None:
                return total
            del self._plans[_key(comm)]

    def _pieces(self) -> dict[Communicator, list[int]]:
        """Return the ranks that have the other pieces of parameters, if those are in pieces now."""
        pieces: dict[Communicator, list[int]] = {}
        for i, (_, param) in enumerate(self.params):
            piece = None if param.update_rule is None else param.update_rule.piece
            if piece is not None:
                pieces.setdefault(piece.comm, []).append(i)
        return pieces

    def _add_up(
        self, values: Array, plan: SumPlan, who: str, settings: tuple[float, ...]
    ) -> float | None:
        """Return the sum; None if ranks have other parameters than when they made the plan."""
        if plan.stamp != self._stamp and not self.on_mesh:  # the others shall hear of it
            values = np.zeros(len(plan.names))
        total = float(values[np.all([level.counts for level in plan.levels], axis=0)].sum())
        mine = f"{who} {', '.join([f'{one:.9g}' for one in settings])}".rstrip()
        digest = _number_of(mine)
        for level in plan.levels:
            common = values[level.common]
            sums_here = [common.sum(), abs(common).sum()]
            row = [self._stamp, digest, *sums_here, total if level.first else 0.0]
            rows = level.comm.allgather(np.array(row, np.float64))
            stamps, digests, sums, sizes, totals = map(list, zip(*rows, strict=True))
            if len({float(one) for one in digests}) > 1:
                said = [str(one) for one in level.comm.allgather_obj(mine)]
                raise MismatchError(_OTHERS.format(level.comm, ", ".join(said)))
            if level.stamps and tuple(stamps) != level.stamps:
                return None
            if not all([_are_alike(one, sums[0], max(sizes)) for one in sums]):
                self._find_difference(level, common, who)
            total = float(sum(totals))
        return total

    def compare_copies(self, who: str) -> None:
        """Compare the gradients of copies; all ranks that update together call it.

        Raises:
            MismatchError: some differ by more than rounding; on all ranks.
        """
        for comm in self.in_step:
            while True:
                level = self._levels.get(ranks_of(comm))
                if level is None:
                    level = self._levels[ranks_of(comm)] = self._make_level(comm, [])[0]
                if not level.common:
                    break
                fits = level.stamps[comm.rank] == self._stamp
                params = [self.params[i][1] for i in level.common] if fits else []
                squares = to_numbers([square(param.grad) for param in params])
                rows = comm.allgather(np.array([self._stamp, squares.sum()]))
                if tuple([stamp for stamp, _ in rows]) == level.stamps:
                    total = rows[0][1]
                    finite = np.isfinite([one for _, one in rows]).all()
                    if finite and not all([_are_alike(one, total, total) for _, one in rows]):
                        self._find_difference(level, squares, who)
                    break
                del self._levels[ranks_of(comm)]

    def _find_difference(self, level: Level, mine: Array, who: str) -> None:
        """Raise an error that names a parameter whose copies give different numbers."""
        first, *others = level.comm.allgather(mine)
        for place, *row in zip(level.common, first, *others, strict=True):
            for rank, number in enumerate(row):
                if not _are_alike(number, row[0], abs(first).sum() / len(first), 0.25 * TOLERANCE):
                    path = self.params[place][0]
                    raise MismatchError(
                        _DIFFER.format(who, path, [0, rank], level.comm, row[0], number)
                    )

    def largest(self, numbers: Array, comm: Communicator | None = None) -> Array:
        """Return the largest of each number over the ranks of ``comm``, or all that hold the model
        together.
        """
        for channel in self._pieces():
            numbers = channel.allreduce(numbers, op="max")
        if comm is not None:
            return comm.allreduce(numbers, op="max")
        for level in self._plan(None).levels if self.comms else ():
            numbers = level.comm.allreduce(numbers, op="max")
        return numbers

    def share_seed(self, seed: int) -> int:
        """Return one seed for all ranks that have copies, parts or stages; all of them call it."""
        comms = [*self.comms, *self.alike]
        for comm in comms:
            seed = max([int(one) for one in comm.allgather(np.array(seed))])
        for comm in comms:
            if len({int(one) for one in comm.allgather(np.array(seed))}) > 1:
                raise MismatchError(_IRREGULAR.format(comm))
        return seed

    @property
    def is_shared(self) -> bool:
        """Return whether other ranks have copies, parts or other stages of the model."""
        return bool(self.comms or self.alike)

    def names(self, comm: Communicator | None) -> dict[int, str]:
        """Return, by ``id``, names that parameters have on all ranks, and no others have; those of
        ``comm``, or else those that hold the model together, call it.
        """
        names = [path for path, _ in self.params]
        if self.comms or comm is not None:
            changed = self._plan(comm).stamp != self._stamp and not self.on_mesh
            if self.largest(np.array(float(changed)), comm):
                del self._plans[_key(comm)]
            names = self._plan(comm).names
        return {id(param): name for (_, param), name in zip(self.params, names, strict=True)}

    # ---- whether it is known who holds the model ----

    def check_crossed(self, who: str) -> None:
        """Check that the last backward sent gradients to no rank that is not known to hold the
        model.

        Raises:
            RuntimeError: it did.
        """
        crossed = current_tape().crossed
        if not crossed or self.on_mesh:
            return
        known = set(self._plan(None).ranks) if self.comms else set()
        known.update(*map(ranks_of, self.alike))
        for comm, (name, site) in crossed.items():
            others = [rank for rank in ranks_of(comm) if rank not in known]
            if comm.size > 1 and others:
                where = f"{name} at {site}" if site else name
                raise RuntimeError(_CROSSED.format(comm.rank, who, where, comm))

    def check_comm(self, comm: Communicator, who: str) -> None:
        """Check that a communicator has all ranks that are known to hold the model together.

        Raises:
            ValueError: it lacks some.
        """
        for known in self.comms:
            lacks = sorted(set(ranks_of(known)) - set(ranks_of(comm)))
            if lacks:
                raise ValueError(_LACKS.format(comm.rank, who, comm, lacks, known))

    # ---- who has what ----

    def _plan(self, comm: Communicator | None) -> SumPlan:
        """Return the plan for the ranks of ``comm``, or for those that links know; where there is
        none yet, all ranks make it together.
        """
        plan = self._plans.get(_key(comm))
        if plan is None:
            plan = self._plans[_key(comm)] = self._make_plan(comm)
        return plan

    def _make_plan(self, given: Communicator | None) -> SumPlan:
        comms = self.comms if given is None else [given]
        names = [path for path, _ in self.params]
        levels = []
        # the ranks of whose parameters this rank knows the sum
        mine = sorted({ranks_of(comm)[comm.rank] for comm in comms})
        for comm in comms:
            level, mine, ambiguous = self._make_level(comm, mine, given is not None)
            levels.append(level)
            names = ["" if name in ambiguous else name for name in names]
        for comm in comms:
            if any([ranks != mine for ranks in comm.allgather_obj(mine)]):
                raise MismatchError(_IRREGULAR.format(comm))
        return SumPlan(levels, frozenset(mine), names, self._stamp)

    def _make_level(
        self, comm: Communicator, mine: list[int], is_given: bool = False
    ) -> tuple[Level, list[int], set[str]]:
        """Tell the ranks of a communicator what this one has; all of them call it.

        Args:
            comm: of these ranks.
            mine: those of whose parameters this rank knows the sum before.
            is_given: whether no link says what the ranks are to each other.

        Returns:
            The sum over them; the ranks of whose parameters each knows the sum then; and paths that
            stand for several parameters.
        """
        tables: list[_Table] = comm.allgather_obj(self._table(mine, is_given))
        classes, ambiguous = _classes(tables, ranks_of(comm))
        before = [table.ranks for table in tables]
        first = {one: rank for rank in reversed(range(comm.size)) for one in classes[rank]}
        common = set(classes[0]).intersection(*classes)
        places = {one: i for i, one in enumerate(classes[comm.rank])}
        level = Level(
            comm,
            np.array([first[one] == comm.rank for one in classes[comm.rank]], bool),
            [places[one] for one in classes[0] if one in common],
            before.index(mine) == comm.rank,
            tuple([table.stamp for table in tables]),
        )
        ranks = sorted({rank for some in before for rank in some})
        if sum(map(len, dict.fromkeys(map(tuple, before)))) != len(ranks):
            raise MismatchError(_IRREGULAR.format(comm))
        return level, ranks, ambiguous

    def _table(self, ranks: list[int], with_digest: bool) -> _Table:
        digest = b""
        if with_digest:
            parts = [param.array for _, param in self.params if param.box is not None]
            digest = _digest_of([part for part in parts if part.size])
        alike = [ranks_of(comm) for comm in self.alike]
        return _Table(ranks, self._rows, alike, digest, self._stamp)


# of a parameter: its path; its box; the ranks that share it as a tied weight, and its number among
# theirs
_Row = tuple[str, Any, tuple[Ranks, int] | None]


class _Table(NamedTuple):
    """The parameters of a rank, as it tells the others.

    Args:
        ranks: of whose parameters it knows the sum, itself included.
        rows: its parameters.
        alike: ranks that run one program.
        digest: of its parts of divided parameters, where nobody may know that others have copies of
            them; empty: it has none.
        stamp: of all that.
    """

    ranks: list[int]
    rows: list[_Row]
    alike: list[Ranks]
    digest: bytes
    stamp: float


class _Unions:
    """Sets of things that are one, and grow together (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}

    def find(self, one: Hashable) -> Hashable:
        """Return the one that stands for a thing's set."""
        while (parent := self._parents.get(one, one)) != one:
            one = parent
        return one

    def join(self, things: Iterable[Hashable]) -> None:
        """Make the sets of things one."""
        first, *others = map(self.find, things)
        for other in others:
            self._parents[other] = first


def _classes(tables: list[_Table], world: Ranks) -> tuple[list[list[Hashable]], set[str]]:
    """Return, for each parameter of each rank, what is the same exactly for copies; and the paths
    under which there are several parameters.
    """
    unions = _Unions()
    numbers = {rank: i for i, rank in enumerate(world)}
    owners: dict[bytes, int] = {}
    for rank, table in enumerate(tables):
        for ranks in table.alike:
            unions.join([numbers[one] for one in ranks if one in numbers])
        if table.digest:
            unions.join([owners.setdefault(table.digest, rank), rank])
    for rank, table in enumerate(tables):
        for path, box, tied in table.rows:
            if tied is not None and set(tied[0]) <= set(world):
                unions.join([tied, (unions.find(rank), path, box)])
    classes = [
        [unions.find((unions.find(rank), path, box)) for path, box, _ in table.rows]
        for rank, table in enumerate(tables)
    ]
    wholes = _Unions()
    for rank, table in enumerate(tables):
        for (path, *_), one in zip(table.rows, classes[rank], strict=True):
            wholes.join([("whole", unions.find(rank), path), one])
    found: dict[str, Hashable] = {}
    ambiguous = set()
    for rank, table in enumerate(tables):
        for path, *_ in table.rows:
            whole = wholes.find(("whole", unions.find(rank), path))
            if found.setdefault(path, whole) != whole:
                ambiguous.add(path)
    return classes, ambiguous


def is_due(t: int, every: int = 100) -> bool:
    """Return whether copies are compared in the update after ``t`` others: after 0, 1, 2, 4 … and
    then every so many; in debug mode always.
    """
    return not t % every or (t < every and not t & (t - 1)) or is_debugging()


def square(g: Array | None) -> Any:
    """Return Σ|g|², on g's device, of at least 32 bits; 0 for no array."""
    if g is None:
        return 0.0
    g = g.astype(np.promote_types(g.dtype, np.float32), copy=False).ravel()
    return backend.get_array_module(g).vdot(g, g).real


def widest(comms: list[Communicator]) -> list[Communicator]:
    """Return communicators of several ranks, one of each that have the same, and none of which
    another one has all ranks and more.
    """
    found = {ranks_of(comm): comm for comm in reversed(comms)}
    return [
        found[ranks]
        for ranks in dict.fromkeys(map(ranks_of, comms))
        if len(ranks) > 1 and not any([set(ranks) < set(others) for others in found])
    ]


def ranks_of(comm: Communicator) -> Ranks:
    """Return the ranks of a communicator, by their numbers in the world."""
    return tuple(comm.transport.world_ranks)


def _key(comm: Communicator | None) -> Ranks:
    return () if comm is None else ranks_of(comm)


def _number_of(text: str) -> float:
    """Return a number that stands for a text, and that a float holds exactly."""
    return float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big"))


def _digest_of(arrays: list[Array]) -> bytes:
    if not arrays:
        return b""
    digest = hashlib.blake2b(digest_size=16)
    for x in arrays:
        digest.update(backend.as_bytes(backend.to_host(x)).data)
    return digest.digest()


def _are_alike(a: float, b: float, size: float, tolerance: float = TOLERANCE) -> bool:
    """Return whether they are numbers of the same thing: what ranks compute alike may have other
    last digits on another processor. ``size``: of what was added up.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.isfinite(a) == math.isfinite(b)
    return abs(a - b) <= tolerance * max(abs(a), abs(b), size)


def to_numbers(values: list[Any]) -> Array:
    """Return numbers, some of them arrays on a device, as an array on the host, with one copy from
    the device.
    """
    there = [i for i, x in enumerate(values) if backend.is_array(x) and type(x) is not np.ndarray]
    numbers = np.zeros(len(values))
    if there:
        xp = backend.get_array_module(values[there[0]])
        numbers[there] = backend.to_host(xp.stack([values[i].reshape(()) for i in there]))
    for i, x in enumerate(values):
        if not backend.is_array(x) or type(x) is np.ndarray:
            numbers[i] = x
    return numbers


_DIFFER = (
    "{0}: ranks {2} of {3!r} have copies of {1}, and its number is {4:.6g} on one and {5:.6g} on "
    "the other: their gradients or values are not the same, and they drift apart. Gradients that "
    "are each rank's share are summed by create_multi_node_optimizer over these ranks, by "
    "F.copy_to(comm, …) or by the hook WholeGradients(comm)"
)

_OTHERS = (
    "the ranks that hold the model together over {!r} call different sums over it (rank 0's, rank "
    "1's, ...): {}. All of them have the same hooks, with the same numbers, in the same order"
)

_CROSSED = (
    "rank {0}: {1} does not know which ranks hold the model together: the last backward sent "
    "gradients over {3!r} ({2}), and no link of the optimizer's target says what its ranks hold. "
    "Give it comm=, a communicator of all ranks that have a part of the model, or "
    "comm=mnpar.create_communicator('self'), if this rank's parameters are meant alone; or set the "
    "optimizer up with the link that knows (Pipeline, MultiNodeChainList; others say it in "
    "gradient_comms)"
)

_LACKS = (
    "rank {}: {} was given {!r}, which lacks ranks {} of the world: they hold the model, too, over "
    "{!r}. Leave comm out: the links know it"
)

_IRREGULAR = (
    "the ranks that hold the model together over {!r} hold it with different others: sums over one "
    "communicator after the other do not reach all of them. Give comm=, a communicator of all "
    "ranks that have a part of the model, or create_multi_node_optimizer a mesh"
)
