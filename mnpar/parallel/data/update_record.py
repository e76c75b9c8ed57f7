"""Which optimizer a rank updates, and by which hyperparameters: two numbers that ranks tell each
other in every update.

Gradients of two models of one form fit together, whoever they are added to, and copies that step by
different learning rates drift apart without an error. So each rank tells a number of its optimizer
and a sum of its hyperparameters, and only where they are not alike do the ranks say more.

How many samples a loss is the mean of, by the arguments of the function that computes it.

The few numbers (``Row``) that ranks which step together exchange in each update: before
backward, or with the gradients.

If a gradient may be sent to another rank during backward, its weight must be known before: the
ranks meet, and wait for the slowest forward. Otherwise the rows travel in the message of the
gradients and cost nothing: the loss is weighted by the samples of the update before, and the sum is
corrected if these are others now.
"""

from __future__ import annotations

import copy
from itertools import count
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from mnpar.errors import MismatchError
from mnpar.optimizers import GradientMethod, Hyperparameter, hooks
from mnpar.parallel.data.consistency import alike
from mnpar.parameter import structure

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.parallel.data.placement import Placement
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mnpar import backend
from mnpar.backend import Array
from mnpar.link import Link
from mnpar.parallel.data.leaf_gradients import OtherGradients, Weighted
from mnpar.parameter import Parameter
from mnpar.runtime.callsite import is_internal
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.parallel.data.placement import Placement
from mnpar.parallel.data.consistency import DIGEST


class Identity:
    """What distinguishes an optimizer from others on the same ranks, and from its like on other
    ranks.

    Args:
        optimizer: of this rank.
        comm: the ranks that step together; they make their optimizers in the same order.
        placement: on a mesh, where the parameters lie: which of them all of these ranks have copies
            of.
        how: how gradients are reduced: ``'weighted'``, ``'mean'`` or ``'sum'``.
    """

    def __init__(
        self, optimizer: GradientMethod, comm: Communicator, placement: Placement | None, how: str
    ) -> None:
        comm.optimizers += 1
        self._how = how
        self.number = comm.optimizers % COPY
        self._copies = count(1)  # of this one, and of its copies
        self._optimizer, self._comm, self._placement = optimizer, comm, placement
        # ``structure.now``, and what single parameters have then
        self._own: tuple[object, dict[str, str]] = (
            None,
            {},
        )
        self._rules: tuple[object, int] = None, 0  # ``structure.tuned``, and the checksum then
        # how many updates were interrupted by errors that the program has caught
        self._interrupted = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Identity:
        """A copy has a number of its own, which it has whatever other optimizers there are: it may
        be on one rank only.
        """
        memo[id(self)] = other = copy.copy(self)
        other.number = self.number % COPY + next(self._copies) % COPY * COPY
        other._optimizer, other._placement = copy.deepcopy((self._optimizer, self._placement), memo)
        other._own = (None, {})
        other._rules = (None, 0)
        return other

    def interrupt(self, times: int | None = 1) -> None:
        """An error has come between the exchange of gradients and the end of a step, on this rank
        at least; None: forget it.
        """
        self._interrupted = 0 if times is None else self._interrupted + times
        structure.tune()

    @property
    def told(self) -> tuple[int, int]:
        """The number, and a checksum of the hyperparameters."""
        if self._rules[0] is not structure.tuned:
            self._rules = structure.tuned, crc32(repr(self._hyperparameters()).encode())
        return self.number, self._rules[1]

    def _hyperparameters(self) -> dict[str, str]:
        """By name, as text of nine digits: the last ones may be rounded in another way on another
        machine.
        """
        if self._own[0] is not structure.now:
            self._own = structure.now, self._of_parameters()
        others = {
            "reduce": self._how,
            # what comes from other ranks is scaled too
            "loss scale": f"{self._optimizer.loss_scale or 1.0:.9g}",
            "hooks": ", ".join(
                [
                    kind.__name__
                    for kind in map(type, self._optimizer.hooks)
                    if kind.__module__ == _CHANGING
                ]
            ),
            _INTERRUPTED: str(self._interrupted),
        }
        return {**_numbers(self._optimizer.hyperparam, ""), **others, **self._own[1]}

    def _of_parameters(self) -> dict[str, str]:
        found = {}
        members = (
            self._optimizer.members() if self._placement is None or self._placement.kinds else []
        )
        for i, param in enumerate([param for param in members if param.summed is None]):
            if param.update_rule is not None:
                found.update(_numbers(param.update_rule.hyperparam, f"parameter {i}'s "))
                if not param.update_rule.enabled:
                    found[f"parameter {i}'s update"] = "disabled"
        return found

    def check(self, rows: list[Row]) -> None:
        """Compare the rows of all ranks, which all of them call with the same rows.

        Raises:
            MismatchError: they update different optimizers, or have other hyperparameters, or some
                lack a step of others; on all ranks.
        """
        self._check_numbers([row.number for row in rows])
        if len({row.rules for row in rows}) == 1:
            return
        everyone = self._comm.allgather_obj(self._hyperparameters())
        names = [
            n
            for n in dict.fromkeys([n for one in everyone for n in one])
            if len({one.get(n) for one in everyone}) > 1
        ]
        # the step had been taken nevertheless
        if names == [_INTERRUPTED] and alike(self._optimizer.target, self._comm):
            self.interrupt(None)
            return
        lines = [
            f"  {name}: {', '.join([one.get(name, 'not set') or 'none' for one in everyone])}"
            for name in names
        ]
        what, remedy = (
            (_LACKS_STEP, _BY_LOADING) if names == [_INTERRUPTED] else (_UNLIKE, _BY_UPDATE)
        )
        raise MismatchError("\n".join([what, *lines, remedy]))

    def check_updates(self) -> None:
        """Before values are given to all ranks, which states are not; all ranks call it.

        Raises:
            MismatchError: they update different optimizers, or some have made more updates; on all
                ranks.
        """
        mine = np.array([self._optimizer.t, self.number])
        updates, numbers = np.stack(self._comm.allgather(mine)).T.tolist()
        self._check_numbers(numbers)
        if len(set(updates)) > 1:
            raise MismatchError(
                f"the ranks' optimizers have made {updates} updates: load one snapshot on all "
                "ranks, or none"
            )

    def _check_numbers(self, numbers: list[int]) -> None:
        if len(set(numbers)) == 1:
            return
        model = self._optimizer.target
        params = ", ".join(
            [f"{path} {param.shape}" for path, param in list(model.namedparams())[:4]]
        )
        models = self._comm.allgather_obj(
            f"a {type(model).__name__} with {params or 'no parameters'}"
        )
        lines = [
            f"  rank {r}: {_named(n)}, of {what}"
            for r, (n, what) in enumerate(zip(numbers, models, strict=True))
        ]
        raise MismatchError("\n".join(["the ranks update different optimizers:", *lines, _ORDER]))


def _named(number: int) -> str:
    which, original = divmod(int(number), COPY)
    return f"copy {which} of optimizer {original}" if which else f"optimizer {original}"


def _numbers(given: Hyperparameter, whose: str) -> dict[str, str]:
    return {
        whose + name: f"{x:.9g}" for name, x in given.__dict__.items() if isinstance(x, _NUMBER)
    }


COPY = 2**16  # numbers of copies are multiples of this, besides
_NUMBER = (int, float, np.number)  # written in the call, a union would be made again each time

_ORDER = (
    "Those of one communicator are numbered in the order in which create_multi_node_optimizer "
    "is called, and their deep copies "
    "in the order in which they are made: call it, copy, and update, in the same order on all ranks"
)

_UNLIKE = "the optimizer's hyperparameters are not the same on all ranks (rank 0's, rank 1's, ...):"
# these change gradients; a user's may only look at them, on one rank
_CHANGING = hooks.__name__
_INTERRUPTED = "interrupted updates"

_LACKS_STEP = (
    "copies are not the same any more: an error has interrupted an update on some ranks (rank "
    "0's, rank 1's, ...):"
)

_BY_LOADING = (
    "The others have taken that step. An error that is caught after the gradients were "
    "exchanged, as one of a hook, is to be "
    "raised on all ranks; now load a snapshot on all of them"
)

_BY_UPDATE = (
    "The copies would drift apart: set them on all ranks, by what is the same there, as the "
    "number of updates (optimizer.t), "
    "and not by each rank's own epoch or loss; a rank that is in join() sets none"
)


def samples_of(*args: Any, **kwds: Any) -> float:
    """How many samples the arguments of a loss function hold: the length of the first that has one;
    -1 if none has.
    """
    return samples_in(args, kwds)


def samples_in(args: Sequence[Any], kwds: Mapping[str, Any]) -> float:
    """The same, of arguments that are together."""
    if args and type(args[0]) is np.ndarray and args[0].ndim:
        return len(args[0])
    for arg in (*args, *kwds.values()):
        if (
            isinstance(arg, Link)
            or getattr(arg, "array", arg) is None
            or getattr(arg, "shape", None) == ()
        ):
            continue  # the length of a chain counts its links
        if isinstance(arg, dict | tuple):
            inside = samples_in((), arg) if isinstance(arg, dict) else samples_in(arg, {})
            if inside >= 0:
                return inside
        elif hasattr(arg, "__len__") and not isinstance(arg, str):
            return len(arg)
    return -1


OFTEN = (
    4 + DIGEST
    # bytes at the end of a note that may change in each update: checksum of hyperparameters, and
    # the digest
)

_NUMBERS = struct.Struct(f"<2d8B2I{DIGEST}x")


class Row(NamedTuple):
    """What a rank tells the others when they meet, once in each update."""

    # what its loss counts: its samples, or 1; 0: it has no loss; -1: it has one of nobody knows how
    # many samples
    weight: float
    held: float = 0.0  # the weight of the gradients that it added up before
    stale: bool = False  # its parameters are not those that were made equal
    # its forward cannot be run again: it communicated, or changed persistent values
    final: bool = False
    manual: bool = False  # its gradients are there already, unweighted
    joining: bool = False  # it has no samples any more
    talks: bool = False  # its forward communicated
    # it has not looked yet whether its model fits together with those of other ranks of a mesh
    unsettled: bool = False
    asks: bool = False  # its step may sum norms of pieces of weights that stages share
    # its values are not those that the last step left, where steps make them alike
    altered: bool = False
    number: int = 0  # of its optimizer (identity.py)
    rules: int = 0  # the same where ranks have the same hyperparameters

    def packed(self) -> bytes:
        """As bytes, with zeros where there may be a digest."""
        return _NUMBERS.pack(*self)

    @classmethod
    def of(cls, note: bytes) -> Row:
        """A row from its bytes."""
        return cls(*_NUMBERS.unpack(note))


def told(mine: Row, comm: Communicator, placement: Placement | None) -> list[Row]:
    """The rows of all ranks that have copies; on a mesh, a flag that is set on any of its ranks is
    set in all of them.
    """
    everyone = comm if placement is None else placement.mesh.comm
    rows = [
        Row(*values) for values in np.stack(everyone.allgather(np.array(mine, np.float64))).tolist()
    ]
    if placement is None:
        return rows
    names = ("stale", "final", "manual", "talks", "unsettled", "asks", "altered")
    flags = {name: any([getattr(row, name) for row in rows]) for name in names}
    return [
        rows[rank]._replace(**flags)
        for rank in placement.mesh.line(placement.summed, everyone.rank)
    ]


def total_of(rows: list[Row]) -> float:
    """The weight of all losses, and of the gradients that were added up before."""
    return sum([abs(row.weight) + row.held for row in rows])


def unknown_among_known(rows: list[Row]) -> list[int]:
    """The ranks that do not know of how many samples their loss is, where others know it."""
    unknown = [rank for rank, row in enumerate(rows) if row.weight < 0]
    return unknown if any([row.weight > 0 or row.held for row in rows]) else []


def check_known(rows: list[Row]) -> None:
    """Raises ValueError on all ranks if some do not know of how many samples their loss is, where
    others know it.
    """
    if unknown := unknown_among_known(rows):
        raise ValueError(UNKNOWN.format(f"the losses' of ranks {unknown}"))


def own_weight(loss: Any, samples: float, how: str) -> float:
    """A rank's weight before it knows the others'."""
    array = getattr(loss, "array", None)
    if samples == 0 or array is None or not array.size:
        return 0.0
    return samples if how == "weighted" else 1.0


def weighted(
    loss: Any, own: float, weight: float, scale: float | None, others: OtherGradients | None
) -> Any:
    """A loss whose backward starts from the weight instead of from 1. A loss of no samples may be
    NaN, and is left out; one that is not known yet, as a pipeline's, starts from 0: other ranks
    count on this one for it.
    """
    if own == 0:
        if getattr(loss, "array", None) is None or not loss.array.size:
            return loss
        if isinstance(loss, Variable):
            return None
        weight = 0.0
    if isinstance(loss, Variable):
        return Weighted(loss, start_of(loss, weight, scale), others)
    if loss.grad is not None:
        loss.grad = backend.wrap_scalar(loss.grad * loss.dtype.type(weight))
    elif loss.size == 1:
        loss.grad = loss.xp.full_like(loss.array, weight * (scale or 1.0))
    return loss


def share_of(rows: list[Row], rank: int, how: str, base: float = 1.0) -> tuple[float, float]:
    """What a rank's loss counts, and what the sum of the gradients is to be multiplied by.

    ``base``: what the weights of gradients that were added up before are divided by. If it is not
    1, so is that of the loss.
    """
    mine = rows[rank]
    total = total_of(rows)
    if how == "sum":
        return 1.0, 1.0
    if any([row.manual for row in rows]):
        return 1.0, 1 / len(rows)
    if any([row.held for row in rows]) or (base != 1 and total):  # the mean is made of the sum
        return abs(mine.weight) / base, base / total
    return abs(mine.weight) / total if total else 0.0, 1.0


def skipped(rows: list[Row]) -> str:
    """The warning that an update took no step, with the reason."""
    return _SKIPPED.format(_MANUAL if any([row.manual or row.held for row in rows]) else _FINAL)


def warn_user(what: str, rank: int = 0) -> None:
    """A warning that names the user's source line; by rank 0, where all ranks know of it."""
    if rank:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(what, stacklevel=level)


def start_of(loss: Variable, weight: float, scale: float | None) -> Array | None:
    """What backward starts from, for a loss that counts so much; None if it cannot start."""
    array = loss.array
    if loss.node.gradient is not None and not isinstance(loss, Parameter):
        return backend.wrap_scalar(loss.grad * array.dtype.type(weight))
    if array.size == 1:
        return backend.get_array_module(array).array(
            weight * (scale or 1.0), array.dtype, ndmin=array.ndim
        )
    return None


UNKNOWN = (
    "of how many samples {} loss is the mean cannot be told from the arguments of the loss "
    "function: give "
    "create_multi_node_optimizer(samples=a function of these arguments), or reduce='mean'"
)

_SKIPPED = (
    "this update only made the parameters equal on all ranks, those of rank 0, and no step was "
    "taken. The first update of an "
    "optimizer does so, of one that was copied before it made one too, and the first with new "
    "parameters: {}"
)

_MANUAL = (
    "gradients that were there already are of other values; update(lossfun, ...) computes them "
    "once more instead"
)

_FINAL = (
    "its forward communicated, or changed persistent values, and so cannot be run once more "
    "with these: give layers their "
    "sizes to avoid it"
)

TWICE = (
    "the model has, or is in, a DistributedDataParallel of these ranks: gradients would be "
    "reduced twice. Use one of them"
)
