"""NaN and infinity that the sum of gradients has given to all ranks: which rank they came from.

After the step all ranks have NaN, and no trace is left of the one that had it first. So each rank
notes a few of its gradients before they are summed (:meth:`Reducer.note`), and says in its next
record when its loss, or a sum, is not finite. Only then do the ranks ask each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnpar.configuration import is_debugging
from mnpar.runtime.callsite import warn_user

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.link import Link
    from mnpar.parallel.data.reducer import Reducer


class NonFiniteReport:
    """One line about NaN or infinity in a training, once.

    Args:
        comm: the ranks that ask each other.
        reducer: has noted this rank's gradients.
    """

    def __init__(self, comm: Communicator, reducer: Reducer) -> None:
        self._comm = comm
        self._reducer = reducer
        self._told = False

    def tell(self, model: Link, update: int, loss: bool | None = None) -> None:
        """Tell where NaN or infinity came from; all ranks call it.

        Args:
            model: this rank's.
            update: how many updates came before.
            loss: whether this rank's own loss is NaN or infinite; None: it has none, or another
                part of the program has it.

        Raises:
            FloatingPointError: in debug mode, on all ranks.
        """
        if self._told and not is_debugging():
            return
        self._told = True
        # the records came with this update's gradients, or before them
        mine = [self._find(model, sums_ago) for sums_ago in (1, 0)]
        losses, *sums = zip(*self._comm.allgather_obj((loss, *mine)), strict=True)
        bad, good = [
            [rank for rank, one in enumerate(losses) if one is which] for which in (True, False)
        ]
        origins = next(
            (
                [f"{path} on rank {rank}" for rank, path in enumerate(paths) if path]
                for paths in sums
                if any(paths)
            ),
            [],
        )
        what = f"the losses of ranks {bad} are" if bad else "a sum of gradients over ranks is"
        why = (
            _BY_LOSS.format(good)
            if bad and good
            else _BY_GRADIENT.format(" and of ".join(origins[:3]))
            if origins
            else _UNKNOWN
        )
        line = f"update {update + 1}: {what} NaN or infinite{why}"
        if is_debugging():
            raise FloatingPointError(line)
        warn_user(line, self._comm.rank)

    def _find(self, model: Link, sums_ago: int) -> str:
        found = self._reducer.find_nonfinite(sums_ago)
        return next((path for path, param in model.namedparams() if param is found), "")


_BY_LOSS = (
    ", those of ranks {} are not. The sum of gradients makes all parameters so: look at these "
    "samples"
)

_BY_GRADIENT = (
    ": the gradient of {} was so before it was added to those of the other ranks. "
    "mnpar.set_debug(True) names the function"
)

_UNKNOWN = (
    ", and no rank's own gradients were before, as far as a few elements of each vector show: the "
    "samples, a step that was too large, or a dtype of the message that was too narrow may do so"
)
