"""Triggers that depend on an observed value: one fires at each new best value, one when there was
none for long.

Ranks observe different values. Ranks that must decide alike, because they communicate afterwards,
give the trigger their communicator: it then judges the mean over all of them.
"""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnpar.reporter import DictSummary
from mnpar.serializer import AbstractSerializer
from mnpar.training.extension import TriggerLike, keep, keep_part
from mnpar.training.trainer import Trainer
from mnpar.training.triggers.interval import get_trigger

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


class Watched:
    """The mean of one observed value over an interval, and over ranks.

    Args:
        key: of the observation.
        trigger: when an interval ends.
        comm: ranks whose values count together; all of them must call this at the same iterations.
    """

    def __init__(self, key: str, trigger: TriggerLike, comm: Communicator | None = None) -> None:
        self.key = key
        self.trigger = get_trigger(trigger)
        self.comm = comm
        self._summary = DictSummary()
        self._warned = False

    def __call__(self, trainer: Trainer) -> float | None:
        """Take an iteration's value; the mean at the end of an interval, None before and where
        nothing was observed.
        """
        if self.key in trainer.observation:
            self._summary.add({self.key: trainer.observation[self.key]})
        if not self.trigger(trainer):
            return None
        summary, self._summary = self._summary, DictSummary()
        if self.comm is not None and self.comm.size > 1:
            ranks = self.comm.allgather_obj(summary.sums())
            summary = DictSummary()
            summary.merge(ranks)
        found = summary.compute_mean().get(self.key)
        if found is None and not self._warned:
            self._warned = True
            known = ", ".join(trainer.observation) or "nothing"
            warnings.warn(
                f"{self.key} was not observed before {self.trigger}; observed was {known}",
                stacklevel=3,
            )
        return found

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the sums of the current interval."""
        keep_part(serializer, "interval_trigger", self.trigger)
        self._summary.serialize(serializer["summary"])


class BestValueTrigger:
    """Fires when the mean of a value over an interval is the best so far; NaN is none.

    Args:
        key: of the observation.
        compare: ``compare(best, new)`` says whether the new value is better.
        trigger: when an interval ends.
        comm: ranks that have this trigger together and judge the mean over all of them; None: each
            judges its own.

    Example:
        >>> from types import SimpleNamespace
        >>> from mnpar import training
        >>> trigger = training.triggers.MaxValueTrigger("accuracy", (1, "iteration"))
        >>> [
        ...     trigger(
        ...         SimpleNamespace(
        ...             updater=SimpleNamespace(iteration=i), observation={"accuracy": x}
        ...         )
        ...     )
        ...     for i, x in enumerate([0.5, 0.4, 0.6], start=1)
        ... ]
        [True, False, True]
    """

    def __init__(
        self,
        key: str,
        compare: Callable[[float, float], bool],
        trigger: TriggerLike = (1, "epoch"),
        *,
        comm: Communicator | None = None,
    ) -> None:
        self._watched = Watched(key, trigger, comm)
        self._compare = compare
        self._best_value: float | None = None

    def __call__(self, trainer: Trainer) -> bool:
        value, best = self._watched(trainer), self._best_value
        # as the best value, no other would compare as better than NaN
        if value is None or math.isnan(value):
            return False
        if best is not None and not math.isnan(best) and not self._compare(best, value):
            return False
        self._best_value = value
        return True

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the best value, and the sums of the current interval."""
        self._watched.serialize(serializer)
        self._best_value = keep(serializer, "best_value", self._best_value, float)


class MaxValueTrigger(BestValueTrigger):
    """Fires when a value is larger than ever before; a :class:`BestValueTrigger`.

    Example:
        >>> from mnpar import training
        >>> best = training.triggers.MaxValueTrigger("validation/main/accuracy")
    """

    def __init__(
        self, key: str, trigger: TriggerLike = (1, "epoch"), *, comm: Communicator | None = None
    ) -> None:
        super().__init__(key, operator.lt, trigger, comm=comm)


class MinValueTrigger(BestValueTrigger):
    """Fires when a value is smaller than ever before; a :class:`BestValueTrigger`.

    Example:
        >>> from mnpar import training
        >>> best = training.triggers.MinValueTrigger("validation/main/loss")
    """

    def __init__(
        self, key: str, trigger: TriggerLike = (1, "epoch"), *, comm: Communicator | None = None
    ) -> None:
        super().__init__(key, operator.gt, trigger, comm=comm)


class EarlyStoppingTrigger:
    """Stops a training when a value has not improved for some checks; a stop trigger.

    Args:
        check_trigger: when the mean of the value since the last check is compared with the best
            one.
        monitor: its key in the observation.
        patience: how many checks without improvement there may be; 3 by default. (``patients`` is
            Chainer's spelling.)
        mode: ``'max'`` or ``'min'`` is better; ``'auto'``: max if the key has ``'accuracy'`` in it.
        verbose: print a line when it stops.
        max_trigger: when to stop anyway.
        comm: ranks that stop together, by the mean over all of them; a trainer whose ranks update
            together sets it.

    Attributes:
        best, count: the best value, and the checks since.

    Raises:
        TypeError: both ``patience`` and ``patients`` are given; ValueError: an unknown mode.

    Example:
        >>> from mnpar import training
        >>> stop = training.triggers.EarlyStoppingTrigger(
        ...     monitor="validation/main/loss", max_trigger=(50, "epoch")
        ... )
        >>> stop.get_training_length()
        (50, 'epoch')
    """

    def __init__(
        self,
        check_trigger: TriggerLike = (1, "epoch"),
        monitor: str = "main/loss",
        patience: int | None = None,
        mode: str = "auto",
        verbose: bool = False,
        max_trigger: TriggerLike = (100, "epoch"),
        *,
        patients: int | None = None,
        comm: Communicator | None = None,
    ) -> None:
        if patience is not None and patients is not None:
            raise TypeError("patience and patients are one argument: give one of them")
        if mode not in ("auto", "max", "min"):
            raise ValueError(f"mode is 'auto', 'max' or 'min', not {mode!r}")
        self.patience = next((n for n in (patience, patients) if n is not None), 3)
        self.monitor, self.verbose, self.count = monitor, verbose, 0
        self._max_trigger = get_trigger(max_trigger)
        self._watched = Watched(monitor, check_trigger, comm)
        larger = mode == "max" or (mode == "auto" and "accuracy" in monitor)
        self._compare = operator.gt if larger else operator.lt
        self.best = -math.inf if larger else math.inf

    @property
    def comm(self) -> Communicator | None:
        """The ranks that stop together."""
        return self._watched.comm

    @comm.setter
    def comm(self, comm: Communicator | None) -> None:
        self._watched.comm = comm

    def __call__(self, trainer: Trainer) -> bool:
        # may communicate, so all ranks call it, also where max_trigger fires
        value = self._watched(trainer)
        if self._max_trigger(trainer):
            return True
        if value is None:
            return False
        if self._compare(value, self.best):
            self.best, self.count = value, 0
        else:
            self.count += 1
        stops = self._stop_condition()
        if stops and self.verbose and getattr(trainer, "speaks", True):
            sys.stdout.write(
                f"Epoch {trainer.updater.epoch}: early stopping, {self.monitor} was "
                f"{self.best:g} at its best\n"
            )
        return stops

    def _stop_condition(self) -> bool:
        return self.count >= self.patience

    def get_training_length(self) -> Any:
        """Return the longest that it may take, in iterations or epochs; raises AttributeError where
        ``max_trigger`` cannot say.
        """
        return self._max_trigger.get_training_length()  # type: ignore[attr-defined]

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the best value and the checks since."""
        self._watched.serialize(serializer)
        self.best = keep(serializer, "best", self.best, float)
        self.count = keep(serializer, "count", self.count, int)
        keep_part(serializer, "max_trigger", self._max_trigger)
