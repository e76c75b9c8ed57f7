"""Which sum of gradients a rank takes part in, and by which settings: two numbers in each update
record.

Gradients of two models of one form fit together, whoever they are added to, and copies that step by
different learning rates drift apart without an error. So each rank tells a number of its optimizer,
or of its DistributedDataParallel, and a checksum of the settings, and only where these are not
alike do the ranks say more.
"""

from __future__ import annotations

import copy
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self
from zlib import crc32

import numpy as np

from mnpar.communicators.replication import describe_model
from mnpar.errors import MismatchError
from mnpar.optimizers import GradientMethod, hooks
from mnpar.parallel.data.consistency import are_equal
from mnpar.parameter import structure

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.link import Link
    from mnpar.parallel.data.placement import Placement
    from mnpar.parallel.data.update_record import UpdateRecord


_ORDER = (
    "Those of one communicator are numbered in the order in which {} is called, and their deep "
    "copies in the order in which they are made: call it, copy, and {}, in the same order on all "
    "ranks"
)


class SyncFingerprint:
    """A distinction of what sums gradients from others of its kind on the same ranks, and from its
    like on other ranks.

    Args:
        comm: the ranks that sum together; they make theirs in the same order.
    """

    kind: ClassVar[str]
    different: ClassVar[str]  # the first line of an error where numbers differ
    order: ClassVar[str]  # and its last
    unlike: ClassVar[str]  # the first line of an error where settings differ
    remedy: ClassVar[str]  # and its last

    def __init__(self, comm: Communicator) -> None:
        comm.made[self.kind] += 1
        self.number = comm.made[self.kind] % COPY
        self._copies = count(1)  # of this one, and of its copies
        self.comm = comm
        self._checksum: tuple[object, int] = (None, 0)  # ``structure.tuned``, and of that time

    @property
    def model(self) -> Link:
        """The model whose gradients are summed."""
        raise NotImplementedError

    def settings(self) -> dict[str, str]:
        """Return, by name, as text, what is to be the same on all ranks."""
        raise NotImplementedError

    def copy(self) -> Self:
        """Return a copy with a number that does not depend on how many there are: it may be made on
        one rank only.
        """
        other = copy.copy(self)
        other.number = self.number % COPY + next(self._copies) % COPY * COPY
        other._checksum = (None, 0)
        return other

    @property
    def numbers(self) -> tuple[int, int]:
        """The number among those of its kind, and a checksum of the settings."""
        if self._checksum[0] is not structure.tuned:
            self._checksum = structure.tuned, crc32(repr(self.settings()).encode())
        return self.number, self._checksum[1]

    def check(self, records: list[UpdateRecord]) -> None:
        """Compare the records of all ranks; all ranks call it with the same.

        Raises:
            MismatchError: they sum gradients of different models, or have other settings; on all
                ranks.
        """
        self.check_numbers([record.number for record in records])
        if len({record.rules for record in records}) > 1:
            self._compare(self.comm.allgather_obj(self.settings()))

    def _compare(self, everyone: list[dict[str, str]]) -> None:
        lines = [
            f"  {name}: {', '.join([one.get(name, 'not set') or 'none' for one in everyone])}"
            for name in _different(everyone)
        ]
        raise MismatchError("\n".join([self.unlike, *lines, self.remedy]))

    def check_numbers(self, numbers: list[int] | None = None) -> None:
        """Compare the numbers of all ranks, which are gathered if they are not given; all ranks
        call it.

        Raises:
            MismatchError: they differ; on all ranks.
        """
        if numbers is None:
            numbers = [int(n) for n in self.comm.allgather(np.array(self.number))]
        if len(set(numbers)) == 1:
            return
        models = self.comm.allgather_obj(describe_model(self.model))
        lines = [
            f"  rank {r}: {self._name_of(n)}, of {what}"
            for r, (n, what) in enumerate(zip(numbers, models, strict=True))
        ]
        raise MismatchError("\n".join([self.different, *lines, self.order]))

    def _name_of(self, number: int) -> str:
        which, original = divmod(int(number), COPY)
        name = f"{self.kind} {original}"
        return f"copy {which} of {name}" if which else name


class ModelFingerprint(SyncFingerprint):
    """The fingerprint of a DistributedDataParallel.

    Args:
        model: of this rank.
        comm: the ranks that hold copies of it.
        how: how gradients are reduced: ``'weighted'`` or ``'mean'``.
    """

    kind = "DistributedDataParallel"
    different = "the ranks call different models, each in a DistributedDataParallel:"
    order = _ORDER.format("DistributedDataParallel(module, comm)", "call the models")
    unlike = "DistributedDataParallel was not made alike on all ranks (rank 0's, rank 1's, ...):"
    remedy = "Give it the same arguments on all ranks"

    def __init__(self, model: Link, comm: Communicator, how: str) -> None:
        super().__init__(comm)
        self._model = model
        self.how = how

    @property
    def model(self) -> Link:
        """The model inside."""
        return self._model

    def settings(self) -> dict[str, str]:
        """Return how gradients are reduced."""
        return {"reduce": self.how}

    def copy_for(self, model: Link) -> ModelFingerprint:
        """Return the fingerprint of a copy of the model."""
        other = self.copy()
        other._model = model
        return other


class OptimizerFingerprint(SyncFingerprint):
    """The fingerprint of an optimizer of several ranks.

    Args:
        optimizer: of this rank.
        comm: the ranks that step together.
        placement: on a mesh, where the parameters lie: which of them all of these ranks have copies
            of.
        how: how gradients are reduced: ``'weighted'``, ``'mean'`` or ``'sum'``.
    """

    kind = "optimizer"
    different = "the ranks update different optimizers:"
    order = _ORDER.format("create_multi_node_optimizer", "update")
    unlike = (
        "the optimizer's hyperparameters are not the same on all ranks (rank 0's, rank 1's, ...):"
    )
    remedy = (
        "The copies would drift apart: set them on all ranks, by what is the same there, as the "
        "number of updates (optimizer.t), and not by each rank's own epoch or loss; a rank that is "
        "in join() sets none"
    )

    def __init__(
        self, optimizer: GradientMethod, comm: Communicator, placement: Placement | None, how: str
    ) -> None:
        super().__init__(comm)
        self._how = how
        self._optimizer = optimizer
        self._placement = placement
        # ``structure.now``, and the hyperparameters that single parameters have then
        self._own: tuple[object, dict[str, str]] = (None, {})
        self._interrupted = 0  # how many updates ended by errors that the program has caught

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizerFingerprint:
        """Return the fingerprint of a copy of the optimizer."""
        memo[id(self)] = other = self.copy()
        other._optimizer, other._placement = copy.deepcopy((self._optimizer, self._placement), memo)
        other._own = (None, {})
        return other

    @property
    def model(self) -> Link:
        """The model that the optimizer was set up with."""
        model: Link = self._optimizer.target
        return model

    def interrupt(self, times: int | None = 1) -> None:
        """Note that an error has come between the exchange of gradients and the end of a step, on
        this rank at least; None: forget it.
        """
        self._interrupted = 0 if times is None else self._interrupted + times
        structure.tune()

    def settings(self) -> dict[str, str]:
        """Return the hyperparameters, as text of nine digits: the last ones may be rounded in
        another way on another machine.
        """
        if self._own[0] is not structure.now:
            self._own = structure.now, self._of_parameters()
        # only hooks of the package change gradients for certain; a user's may only look at them, on
        # one rank
        hooks = [hook for hook in self._optimizer.hooks if type(hook).__module__ == _HOOKS]
        others = {
            "reduce": self._how,
            # what comes from other ranks is scaled too
            "loss scale": f"{self._optimizer.loss_scale or 1.0:.9g}",
            # two kinds may have hyperparameters of the same names and values
            "optimizer": type(self._optimizer).__name__,
            "hooks": ", ".join([type(hook).__name__ for hook in hooks]),
            _INTERRUPTED: str(self._interrupted),
        }
        for i, hook in enumerate(hooks):
            others.update(_texts(hook, f"hook {i}'s "))
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

    def _compare(self, everyone: list[dict[str, str]]) -> None:
        if _different(everyone) != [_INTERRUPTED]:
            super()._compare(everyone)
        if are_equal(self.model, self.comm):  # the step was taken nevertheless
            self.interrupt(None)
            return
        times = ", ".join([one[_INTERRUPTED] for one in everyone])
        raise MismatchError(f"{_LACKS_STEP}\n  {_INTERRUPTED}: {times}\n{_BY_LOADING}")

    def check_updates(self) -> None:
        """Check, before values are given to all ranks, that states fit to them; all ranks call it.

        Raises:
            MismatchError: they update different optimizers, or some have made more updates; on all
                ranks.
        """
        mine = np.array([self._optimizer.t, self.number])
        updates, numbers = np.stack(self.comm.allgather(mine)).T.tolist()
        self.check_numbers(numbers)
        if len(set(updates)) > 1:
            raise MismatchError(
                f"the ranks' optimizers have made {updates} updates: load one snapshot on all "
                "ranks, or none"
            )


def _different(everyone: list[dict[str, str]]) -> list[str]:
    """Return the names of what the ranks have set in different ways."""
    return [
        name
        for name in dict.fromkeys([name for one in everyone for name in one])
        if len({one.get(name) for one in everyone}) > 1
    ]


def _texts(given: object, whose: str) -> dict[str, str]:
    return {whose + name: f"{x:.9g}" for name, x in vars(given).items() if isinstance(x, _NUMBER)}


COPY = 2**16  # numbers of copies are multiples of this, plus the original's
_NUMBER = (int, float, np.number)  # written in the call, a union would be made again each time
_HOOKS = hooks.__name__
_INTERRUPTED = "interrupted updates"

_LACKS_STEP = (
    "copies are not the same any more: an error has interrupted an update on some ranks (rank "
    "0's, rank 1's, ...):"
)

_BY_LOADING = (
    "The others have taken that step. An error that is caught after the gradients were "
    "exchanged, as one of a hook, is to be raised on all ranks; now load a snapshot on all of them"
)
