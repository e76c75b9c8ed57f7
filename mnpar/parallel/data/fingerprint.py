"""Which optimizer a rank updates, and by which hyperparameters: two numbers in each update record.

Gradients of two models of one form fit together, whoever they are added to, and copies that step by
different learning rates drift apart without an error. So each rank tells a number of its optimizer
and a checksum of its hyperparameters, and only where these are not alike do the ranks say more.
"""

from __future__ import annotations

import copy
from itertools import count
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from mnpar.errors import MismatchError
from mnpar.optimizers import GradientMethod, Hyperparameter, hooks
from mnpar.parallel.data.consistency import are_equal
from mnpar.parameter import structure

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.parallel.data.placement import Placement
    from mnpar.parallel.data.update_record import UpdateRecord


class OptimizerFingerprint:
    """A distinction of an optimizer from others on the same ranks, and from its like on other
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
        self._optimizer = optimizer
        self._comm = comm
        self._placement = placement
        # ``structure.now``, and the hyperparameters that single parameters have then
        self._own: tuple[object, dict[str, str]] = (None, {})
        self._rules: tuple[object, int] = (None, 0)  # ``structure.tuned``, and the checksum then
        self._interrupted = 0  # how many updates ended by errors that the program has caught

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizerFingerprint:
        """Return a copy with a number that does not depend on how many optimizers there are: it may
        be on one rank only.
        """
        memo[id(self)] = other = copy.copy(self)
        other.number = self.number % COPY + next(self._copies) % COPY * COPY
        other._optimizer, other._placement = copy.deepcopy((self._optimizer, self._placement), memo)
        other._own = (None, {})
        other._rules = (None, 0)
        return other

    def interrupt(self, times: int | None = 1) -> None:
        """Note that an error has come between the exchange of gradients and the end of a step, on
        this rank at least; None: forget it.
        """
        self._interrupted = 0 if times is None else self._interrupted + times
        structure.tune()

    @property
    def numbers(self) -> tuple[int, int]:
        """The optimizer's number, and a checksum of the hyperparameters."""
        if self._rules[0] is not structure.tuned:
            self._rules = structure.tuned, crc32(repr(self._hyperparameters()).encode())
        return self.number, self._rules[1]

    def _hyperparameters(self) -> dict[str, str]:
        """Return them by name, as text of nine digits: the last ones may be rounded in another way
        on another machine.
        """
        if self._own[0] is not structure.now:
            self._own = structure.now, self._of_parameters()
        # only hooks of the package change gradients for certain; a user's may only look at them, on
        # one rank
        kinds = [kind for kind in map(type, self._optimizer.hooks) if kind.__module__ == _HOOKS]
        others = {
            "reduce": self._how,
            # what comes from other ranks is scaled too
            "loss scale": f"{self._optimizer.loss_scale or 1.0:.9g}",
            "hooks": ", ".join([kind.__name__ for kind in kinds]),
            _INTERRUPTED: str(self._interrupted),
        }
        return {**_texts(self._optimizer.hyperparam, ""), **others, **self._own[1]}

    def _of_parameters(self) -> dict[str, str]:
        found = {}
        shared = self._placement is None or self._placement.kinds
        members = self._optimizer.members() if shared else []
        for i, param in enumerate([param for param in members if param.summed is None]):
            if param.update_rule is not None:
                found.update(_texts(param.update_rule.hyperparam, f"parameter {i}'s "))
                if not param.update_rule.enabled:
                    found[f"parameter {i}'s update"] = "disabled"
        return found

    def check(self, records: list[UpdateRecord]) -> None:
        """Compare the records of all ranks; all ranks call it with the same.

        Raises:
            MismatchError: they update different optimizers, or have other hyperparameters, or some
                lack a step of others; on all ranks.
        """
        self._check_numbers([record.number for record in records])
        if len({record.rules for record in records}) == 1:
            return
        everyone = self._comm.allgather_obj(self._hyperparameters())
        names = [
            name
            for name in dict.fromkeys([name for one in everyone for name in one])
            if len({one.get(name) for one in everyone}) > 1
        ]
        # the step was taken nevertheless
        if names == [_INTERRUPTED] and are_equal(self._optimizer.target, self._comm):
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
        """Check, before values are given to all ranks, that states fit to them; all ranks call it.

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
            f"  rank {r}: {_name_of(n)}, of {what}"
            for r, (n, what) in enumerate(zip(numbers, models, strict=True))
        ]
        raise MismatchError("\n".join(["the ranks update different optimizers:", *lines, _ORDER]))


def _name_of(number: int) -> str:
    which, original = divmod(int(number), COPY)
    return f"copy {which} of optimizer {original}" if which else f"optimizer {original}"


def _texts(given: Hyperparameter, whose: str) -> dict[str, str]:
    return {
        whose + name: f"{x:.9g}" for name, x in given.__dict__.items() if isinstance(x, _NUMBER)
    }


COPY = 2**16  # numbers of copies are multiples of this, plus the original's
_NUMBER = (int, float, np.number)  # written in the call, a union would be made again each time
_HOOKS = hooks.__name__
_INTERRUPTED = "interrupted updates"

_ORDER = (
    "Those of one communicator are numbered in the order in which create_multi_node_optimizer "
    "is called, and their deep copies in the order in which they are made: call it, copy, and "
    "update, in the same order on all ranks"
)

_UNLIKE = "the optimizer's hyperparameters are not the same on all ranks (rank 0's, rank 1's, ...):"

_LACKS_STEP = (
    "copies are not the same any more: an error has interrupted an update on some ranks (rank "
    "0's, rank 1's, ...):"
)

_BY_LOADING = (
    "The others have taken that step. An error that is caught after the gradients were "
    "exchanged, as one of a hook, is to be raised on all ranks; now load a snapshot on all of them"
)

_BY_UPDATE = (
    "The copies would drift apart: set them on all ranks, by what is the same there, as the "
    "number of updates (optimizer.t), and not by each rank's own epoch or loss; a rank that is in "
    "join() sets none"
)
