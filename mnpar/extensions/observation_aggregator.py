"""Extensions that combine values of all ranks: observations, persistent arrays before an
evaluation, early stopping.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.autograd.arraylike import as_array
from mnpar.communicators.communicator import require_communicator
from mnpar.communicators.consensus import run_on_root
from mnpar.link import Link
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.training.extension import (
    PRIORITY_EDITOR,
    PRIORITY_WRITER,
    Extension,
    TriggerLike,
    keep,
    keep_part,
)
from mnpar.training.triggers import EarlyStoppingTrigger
from mnpar.training.triggers.interval import get_trigger
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators import Communicator
    from mnpar.training.trainer import Trainer


class ObservationAggregator(Extension):
    """Combines the values that all ranks observed into one, and puts the result into the
    observation of each rank. Collective.

    Args:
        comm: all its ranks have the extension.
        original_key: of the observed value. Some ranks may lack it.
        aggregated_key: of the result; None: the same key.
        comm_trigger: when ranks communicate; until then each collects its values. The same on all
            ranks.
        aggregator: called on rank 0 with a list of each rank's list of values; None: the mean of
            all, in which a pair ``(value, weight)`` counts by its weight.

    Values that were observed as Variables, as links report them in Chainer, are given to the
    aggregator as Variables, on the host, and their mean is one.

    Example:
        >>> from types import SimpleNamespace
        >>> import mnpar
        >>> from mnpar.extensions import ObservationAggregator
        >>> def program(comm):
        ...     trainer = SimpleNamespace(
        ...         updater=SimpleNamespace(iteration=1), observation={"loss": 1.0 + comm.rank}
        ...     )
        ...     ObservationAggregator(comm, "loss", "mean loss")(trainer)
        ...     return trainer.observation
        >>> mnpar.run(program, ranks=2)
        [{'loss': 1.0, 'mean loss': 1.5}, {'loss': 2.0, 'mean loss': 1.5}]
    """

    priority = PRIORITY_EDITOR

    def __init__(
        self,
        comm: Communicator,
        original_key: str,
        aggregated_key: str | None = None,
        *,
        comm_trigger: Any = (1, "iteration"),
        aggregator: Callable[[list[list[Any]]], Any] | None = None,
    ) -> None:
        require_communicator(comm, "ObservationAggregator(comm, original_key)")
        self.comm, self.original_key = comm, original_key
        self.aggregated_key = original_key if aggregated_key is None else aggregated_key
        self.comm_trigger = get_trigger(comm_trigger)
        self.aggregator = aggregator or _mean
        self.observation_history: list[Any] = []

    def compute_summary(self, trainer: Trainer) -> Any:
        """Collect this iteration's value; return the result when ``comm_trigger`` fires, else
        None.
        """
        if self.original_key in trainer.observation:
            value = trainer.observation[self.original_key]
            self.observation_history.append(
                tuple(map(_on_host, value)) if _is_pair(value) else _on_host(value)
            )
        if not self.comm_trigger(trainer):
            return None
        histories = self.comm.gather_obj(self.observation_history)
        self.observation_history = []
        # an error on rank 0 is raised on all ranks
        return run_on_root(self.comm, 0, lambda: self.aggregator(histories or []))

    def __call__(self, trainer: Trainer) -> None:
        summary = self.compute_summary(trainer)
        if summary is not None:
            trainer.observation[self.aggregated_key] = summary

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the values collected so far (numbers), and the state of ``comm_trigger``."""
        keep_part(serializer, "comm_trigger", self.comm_trigger)
        pairs = [value if _is_pair(value) else (value,) for value in self.observation_history]
        history = json.dumps(
            [
                [
                    part
                    for x in map(np.asarray, map(as_array, pair))
                    for part in (x.dtype.name, x.tolist())
                ]
                for pair in pairs
            ]
        )
        history = keep(serializer, "observation_history", history, str)
        if isinstance(serializer, Deserializer):
            loaded = [
                [np.array(x, dtype)[()] for dtype, x in zip(*[iter(one)] * 2, strict=True)]
                for one in json.loads(history)
            ]
            self.observation_history = [tuple(one) if len(one) == 2 else one[0] for one in loaded]


def _is_pair(value: Any) -> bool:
    """Return whether a value is a pair of a value and a weight."""
    return isinstance(value, tuple) and len(value) == 2


def _on_host(value: Any) -> Any:
    if isinstance(value, Variable):
        return Variable(backend.to_host(value.array), requires_grad=False)
    return backend.to_host(value)


def _mean(ranks: list[list[Any]]) -> Any:
    """Return the mean of all values of all ranks, in float64 at least; None if there is none."""
    values = [value if _is_pair(value) else (value, 1) for values in ranks for value in values]
    pairs = [(as_array(value), as_array(w)) for value, w in values]
    weight = sum(w for _, w in pairs)
    mean = sum(value * np.float64(w) for value, w in pairs) / weight if weight else None
    if mean is not None and any(isinstance(value, Variable) for value, _ in values):
        return Variable(np.asarray(mean), requires_grad=False)
    return float(mean) if isinstance(mean, np.float64) else mean


class AllreducePersistent(Extension):
    """Averages persistent arrays of floats (batch normalization's running statistics) over ranks.
    Collective.

    It must run before an evaluation or a snapshot; by default it runs before both, at each epoch.
    Integers are not averaged.

    Args:
        model: the same on all ranks.
        comm: all its ranks have the extension.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> def program(comm):
        ...     model = L.BatchNormalization(2)
        ...     model.avg_mean[...] = comm.rank
        ...     mnpar.extensions.AllreducePersistent(model, comm)()
        ...     return model.avg_mean
        >>> mnpar.run(program, ranks=2)
        [array([0.5, 0.5], dtype=float32), array([0.5, 0.5], dtype=float32)]
    """

    trigger = (1, "epoch")
    priority = PRIORITY_WRITER + 1

    def __init__(self, model: Link, comm: Communicator) -> None:
        require_communicator(comm, "AllreducePersistent(model, comm)")
        self.model, self.comm = model, comm

    def __call__(self, trainer: Trainer | None = None) -> None:
        for _, value in self.model.namedpersistents():
            if backend.is_array(value) and value.dtype.kind == "f":
                wide = value.astype(np.promote_types(value.dtype, np.float32), copy=False)
                value[...] = self.comm.allreduce(wide) / self.comm.size


class MultiNodeEarlyStoppingTrigger:
    """Stops all ranks together when a value, averaged over them, has not improved for some checks;
    a stop trigger.

    Args:
        comm: all its ranks have this trigger.
        check_trigger: when the mean of the value since the last check is compared with the best
            one.
        monitor: the key of the value in the observation.
        patience: how many checks without improvement may pass; 3 by default. (``patients`` is
            Chainer's spelling.)
        mode: ``'max'`` or ``'min'`` is better; ``'auto'``: max if the key has ``'accuracy'`` in it.
        verbose: print a line on rank 0 at the stop.
        max_trigger: when to stop anyway.
        suffix: the key of the average in the observation is ``monitor + suffix``.

    Example:
        >>> import mnpar
        >>> comm = mnpar.create_communicator("self")
        >>> stop = mnpar.extensions.MultiNodeEarlyStoppingTrigger(
        ...     comm, monitor="validation/main/loss", patience=5
        ... )
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        check_trigger: TriggerLike = (1, "epoch"),
        monitor: str = "main/loss",
        patience: int | None = None,
        mode: str = "auto",
        verbose: bool = False,
        max_trigger: TriggerLike = (100, "epoch"),
        suffix: str = "_aggregated",
        patients: int | None = None,
    ) -> None:
        require_communicator(comm, "MultiNodeEarlyStoppingTrigger(comm, …)")
        aggregated = monitor + suffix
        self.actual_trigger = EarlyStoppingTrigger(
            check_trigger,
            aggregated,
            patience,
            mode,
            verbose and comm.rank == 0,
            max_trigger,
            patients=patients,
        )
        self.aggregator = ObservationAggregator(
            comm, monitor, aggregated, comm_trigger=check_trigger
        )

    def __call__(self, trainer: Trainer) -> bool:
        self.aggregator(trainer)
        return self.actual_trigger(trainer)

    def get_training_length(self) -> Any:
        """Return the longest possible training, as a period and its unit."""
        return self.actual_trigger.get_training_length()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the best value and the checks since."""
        self.aggregator.serialize(serializer["aggregator"])
        self.actual_trigger.serialize(serializer["actual_trigger"])
