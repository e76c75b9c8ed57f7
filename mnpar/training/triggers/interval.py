"""Triggers that count: every n iterations or epochs, at given ones, once, every so many seconds.

Each compares the present iteration with that of its last call, so that it need not be called at
every iteration. Several extensions may share a trigger: further calls in the same iteration return
the same answer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.training.extension import Extension, Trigger, TriggerLike, keep
from mnpar.training.updaters.updater import Updater

if TYPE_CHECKING:
    from mnpar.communicators import Communicator

_ROUNDING = 1e-9  # of a period: ten steps of 0.1 epochs are one epoch


class Counting:
    """The base of triggers that count iterations or epochs: it remembers where it was called
    last.
    """

    def __init__(self, unit: str) -> None:
        if unit not in ("epoch", "iteration"):
            raise ValueError(f"a trigger counts in the unit 'epoch' or 'iteration', not {unit!r}")
        self.unit = unit
        self._previous_iteration: int | None = 0  # None: not known, loaded from a file without it
        self._previous_epoch_detail: float | None = 0.0
        # iteration and epoch of the last call, and its result
        self._last: tuple[Any, tuple[float, float]] | None = None

    def count_from_here(self) -> None:
        """Nothing is known of earlier iterations: at its first call it looks at the last one
        only.
        """
        self._previous_iteration = self._previous_epoch_detail = None

    def _advance(self, updater: Updater) -> tuple[float, float]:
        """(before, now): the counts at the last call in an earlier iteration, and at this one."""
        here = updater.iteration, getattr(updater, "epoch_detail", None)
        if self._last is None or self._last[0] != here:
            self._last = here, self._interval(updater)
        return self._last[1]

    def _interval(self, updater: Updater) -> tuple[float, float]:
        if self.unit == "epoch":
            now, before = updater.epoch_detail, self._previous_epoch_detail
            if before is None or before < 0:
                before = updater.previous_epoch_detail or 0.0
        else:
            now, before = updater.iteration, self._previous_iteration
            if before is None or before < 0:
                before = now - 1
        self._previous_iteration = updater.iteration
        self._previous_epoch_detail = getattr(updater, "epoch_detail", self._previous_epoch_detail)
        return before, now

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load where it was called last."""
        if isinstance(serializer, Deserializer):
            self._last = None
        self._previous_iteration = keep(
            serializer, "previous_iteration", self._previous_iteration, int
        )
        self._previous_epoch_detail = keep(
            serializer, "previous_epoch_detail", self._previous_epoch_detail, float
        )


class IntervalTrigger(Counting):
    """Fires at every so many iterations, or (parts of) epochs.

    Args:
        period: how many; a whole number of iterations.
        unit: ``'iteration'`` or ``'epoch'``.

    Raises:
        ValueError: another unit, or a period that is not positive.

    Example:
        >>> from types import SimpleNamespace
        >>> from mnpar import training
        >>> trigger = training.triggers.IntervalTrigger(2, "iteration")
        >>> [trigger(SimpleNamespace(updater=SimpleNamespace(iteration=i))) for i in (1, 2, 3, 4)]
        [False, True, False, True]
    """

    def __init__(self, period: float, unit: str) -> None:
        super().__init__(unit)
        if not period > 0:
            raise ValueError(f"the period of a trigger is a positive number, not {period!r}")
        self.period = period

    def __call__(self, trainer: Any) -> bool:
        before, now = self._advance(trainer.updater)
        return math.floor(before / self.period + _ROUNDING) != math.floor(
            now / self.period + _ROUNDING
        )

    def get_training_length(self) -> tuple[float, str]:
        """Period and unit: the length of a training that this trigger stops."""
        return self.period, self.unit

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.period}, {self.unit!r})"

    __str__ = __repr__


class ManualScheduleTrigger(Counting):
    """Fires at the given iterations or epochs.

    Args:
        points: one or several of them; epochs may be fractions.
        unit: ``'iteration'`` or ``'epoch'``.

    Attributes:
        finished: whether the last point is over.

    Raises:
        ValueError: another unit, or no points.

    Example:
        >>> from types import SimpleNamespace
        >>> from mnpar import training
        >>> trigger = training.triggers.ManualScheduleTrigger([2, 3], "iteration")
        >>> [trigger(SimpleNamespace(updater=SimpleNamespace(iteration=i))) for i in (1, 2, 3, 4)]
        [False, True, True, False]
    """

    def __init__(self, points: float | Sequence[float], unit: str) -> None:
        super().__init__(unit)
        array = np.asarray(points)
        if array.ndim > 1 or array.size == 0 or array.dtype.kind not in "iuf":
            raise ValueError(
                f"the points of a trigger are one or several numbers of {unit}s, not {points!r}"
            )
        self.points = np.atleast_1d(array).tolist()
        self.finished = False

    def __call__(self, trainer: Any) -> bool:
        before, now = self._advance(trainer.updater)
        fires = any(before < point <= now for point in self.points)
        self.finished = now >= max(self.points)
        return fires

    def get_training_length(self) -> tuple[float, str]:
        """Return the last point and the unit: the length of a training that this trigger stops."""
        return max(self.points), self.unit

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load where it was called last."""
        super().serialize(serializer)
        self.finished = keep(serializer, "finished", self.finished, bool)


class OnceTrigger:
    """Fires at the first iteration of a training, and not after a resumption.

    Args:
        call_on_resume: also at the first iteration after it was resumed.

    Example:
        >>> from mnpar import training
        >>> trigger = training.triggers.OnceTrigger()
        >>> trigger(None), trigger(None)
        (True, False)
    """

    def __init__(self, call_on_resume: bool = False) -> None:
        self._flag_first, self._flag_resumed = True, call_on_resume

    @property
    def finished(self) -> bool:
        """Return whether it has fired."""
        return not (self._flag_first or self._flag_resumed)

    def __call__(self, trainer: Any) -> bool:
        fires = not self.finished
        self._flag_first = self._flag_resumed = False
        return fires

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load whether it has fired."""
        self._flag_first = keep(serializer, "_flag_first", self._flag_first, bool)


class TimeTrigger:
    """Fires at every so many seconds of training, of the runs before a resumption too.

    Args:
        period: seconds.
        comm: ranks that have this trigger together: rank 0's clock decides for all, at each call.
            None: the rank's own.

    Example:
        >>> from types import SimpleNamespace
        >>> from mnpar import training
        >>> trigger = training.triggers.TimeTrigger(60)
        >>> [trigger(SimpleNamespace(elapsed_time=seconds)) for seconds in (59, 61, 62)]
        [False, True, False]
    """

    def __init__(self, period: float, *, comm: Communicator | None = None) -> None:
        if not period >= 0:
            raise ValueError(f"the period of a trigger must be a number of seconds, not {period!r}")
        self._period, self._next_time, self.comm = period, period, comm

    def __call__(self, trainer: Any) -> bool:
        fires = bool(self._next_time < trainer.elapsed_time)
        if self.comm is not None:
            fires = bool(self.comm.bcast(np.array(fires) if self.comm.rank == 0 else None))
        if fires:
            self._next_time += self._period
        return fires

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load when it is to fire next."""
        self._next_time = keep(serializer, "next_time", self._next_time, float)


def get_trigger(trigger: TriggerLike) -> Trigger:
    """Return the trigger that an argument ``trigger`` means.

    Args:
        trigger: a function of the trainer is taken as it is; a pair like ``(1, 'epoch')`` becomes
            an :class:`IntervalTrigger`; None never fires.

    Raises:
        TypeError: it is none of these.

    Example:
        >>> from mnpar import training
        >>> training.get_trigger((2, "epoch"))
        IntervalTrigger(2, 'epoch')
    """
    if trigger is None:
        return _never
    if callable(trigger):
        return trigger
    if not isinstance(trigger, tuple | list) or len(trigger) != 2:
        raise TypeError(
            "a trigger is a function of the trainer, a pair like (1, 'epoch') or None, not "
            f"{trigger!r}"
        )
    return IntervalTrigger(*trigger)


def join_late(name: str, extension: Callable[..., Any], trigger: TriggerLike) -> None:
    """For an extension that comes to a trainer after loading: its trigger counts from here; a lost
    state is warned of.
    """
    if isinstance(trigger, Counting):
        trigger.count_from_here()
    if getattr(type(extension), "serialize", Extension.serialize) is not Extension.serialize:
        warnings.warn(
            f"{name} came to a trainer that was loaded before: what was saved of it is not "
            "loaded, and it begins anew. Call "
            "trainer.extend before loading",
            stacklevel=3,
        )


def is_over(trigger: Any, updater: Updater) -> bool:
    """Return whether a training that this trigger stops is as long as it may become, or longer,
    having been resumed with another length.
    """
    try:
        length, unit = trigger.get_training_length()
    except AttributeError:  # it cannot say
        return False
    now = updater.iteration if unit == "iteration" else getattr(updater, "epoch_detail", 0.0)
    return bool(now >= length * (1 - _ROUNDING))


def _never(trainer: Any) -> bool:
    return False
