"""The training loop: an update, then the extensions whose triggers fire, until the stop trigger
does.

The loop itself never communicates; updaters, extensions and stop triggers do. A trainer whose ranks
update together knows their communicator, so that only rank 0 prints and writes files, and all of
them stop together.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import random
from mnpar.errors import DeadlockError, MismatchError, refuse_class, suggestion
from mnpar.reporter import Reporter
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.training.extension import PRIORITY_READER, Trigger, TriggerLike, keep, keep_part
from mnpar.training.triggers.interval import get_trigger, is_over, join_late
from mnpar.training.updaters.updater import Updater
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.communicators import Communicator


@dataclass(frozen=True)
class ExtensionEntry:
    """An extension, and when it is called."""

    extension: Any
    priority: int
    trigger: Trigger
    call_before_training: bool


class Trainer:
    """Runs an updater, and extensions between its updates.

    Args:
        updater: does one iteration at a time.
        stop_trigger: when to end, ``(20, 'epoch')``; None: never.
        out: the folder for whatever extensions write.
        extensions: see :meth:`extend`.
        comm: the ranks that train together; None: those of a multi-node optimizer, if there is one.
            On its ranks other than 0 extensions print nothing, and write only files that were given
            a name explicitly; a stop trigger that depends on observed values decides for all of its
            ranks.

    Attributes:
        observation: the values reported in this iteration, by name: links report under the name of
            their optimizer.
        reporter: the :class:`mnpar.Reporter` that collects them.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> from mnpar import training
        >>> data = [(np.ones(3, "f4"), i % 2) for i in range(10)]
        >>> optimizer = mnpar.optimizers.SGD().setup(L.Classifier(L.Linear(3, 2)))
        >>> updater = training.StandardUpdater(mnpar.iterators.SerialIterator(data, 5), optimizer)
        >>> trainer = training.Trainer(updater, (3, "epoch"))
        >>> trainer.extend(
        ...     lambda trainer: print("epoch", trainer.updater.epoch),
        ...     name="say",
        ...     trigger=(1, "epoch"),
        ... )
        >>> trainer.run()
        epoch 1
        epoch 2
        epoch 3
    """

    def __init__(
        self,
        updater: Updater,
        stop_trigger: TriggerLike = None,
        out: str = "result",
        extensions: Any = None,
        *,
        comm: Communicator | None = None,
    ) -> None:
        if not hasattr(updater, "get_all_optimizers"):
            raise TypeError(
                f"a trainer is given an updater, as a StandardUpdater, not {type(updater).__name__}"
            )
        self.updater, self.out = updater, out
        self.stop_trigger = get_trigger(stop_trigger)
        self.observation: dict[str, Any] = {}
        self.reporter = Reporter()
        optimizers = updater.get_all_optimizers()
        for name, optimizer in optimizers.items():
            self.reporter.add_observer(name, optimizer.target)
            self.reporter.add_observers(name, optimizer.target.namedlinks(skipself=True))
        syncs = [getattr(optimizer, "sync", None) for optimizer in optimizers.values()]
        self.comm = (
            next((sync.comm for sync in syncs if sync is not None), None) if comm is None else comm
        )
        if self.comm is not None and getattr(self.stop_trigger, "comm", self.comm) is None:
            self.stop_trigger.comm = self.comm  # type: ignore[attr-defined]
        self._entries: dict[str, ExtensionEntry] = {}
        self._start_at: float | None = None
        self._snapshot_elapsed_time = 0.0  # of the runs before a resumption
        self._loaded = False
        self._final_elapsed_time: float | None = None
        updater.connect_trainer(self)
        for extension in extensions or ():
            self.extend(extension)

    @property
    def speaks(self) -> bool:
        """Return whether this rank prints and writes files for all ranks."""
        return self.comm is None or self.comm.rank == 0

    @property
    def is_before_training(self) -> bool:
        """Return whether there was no update yet."""
        return bool(self.updater.iteration == 0)

    @property
    def elapsed_time(self) -> float:
        """Seconds of training, runs before a resumption included.

        Raises:
            RuntimeError: :meth:`run` was not called yet.
        """
        if self._final_elapsed_time is not None:
            return self._final_elapsed_time
        if self._start_at is None:
            raise RuntimeError(
                "training has not been started yet: there is no elapsed time before trainer.run()"
            )
        return time.perf_counter() - self._start_at + self._snapshot_elapsed_time

    def extend(
        self,
        extension: Any,
        name: str | None = None,
        trigger: TriggerLike = None,
        priority: int | None = None,
        *,
        call_before_training: bool = False,
    ) -> None:
        """Call an extension, a function of the trainer, after updates.

        Args:
            extension: with the attributes of :class:`Extension`, or without.
            name: for :meth:`get_extension`, and its key in a snapshot; None: ``extension.name``,
                ``default_name`` or ``__name__``. ``_1``, ``_2`` … is appended to a name that
                another extension has.
            trigger: when; None: ``extension.trigger``, or else at each iteration.
            priority: the highest is called first, equal ones in the order of this call (but
                snapshots of the trainer after the others); None: ``extension.priority``, or else
                ``PRIORITY_READER``.
            call_before_training: also once before the first update.

        Raises:
            TypeError: the extension has no name, or is a class; ValueError: its name is
                ``'training'``.
        """
        refuse_class(extension, "an extension is an object")
        named = (
            getattr(extension, attribute, None)
            for attribute in ("name", "default_name", "__name__")
        )
        stem = name if name is not None else next((n for n in named if n is not None), None)
        if stem is None:
            raise TypeError(
                f"a {type(extension).__name__} has no name: trainer.extend(extension, name='…')"
            )
        if stem == "training":
            raise ValueError("an extension cannot be named 'training'")
        trigger = get_trigger(
            getattr(extension, "trigger", (1, "iteration")) if trigger is None else trigger
        )
        if self._loaded:
            join_late(stem, extension, trigger)
        whole, ordinal = stem, 0
        while whole in self._entries:
            ordinal += 1
            whole = f"{stem}_{ordinal}"
        with suppress(AttributeError):  # bound methods have no attributes of their own
            extension.name = whole
        priority = getattr(extension, "priority", PRIORITY_READER) if priority is None else priority
        self._entries[whole] = ExtensionEntry(extension, priority, trigger, call_before_training)

    def get_extension(self, name: str) -> Any:
        """Return the extension of a name; ValueError if there is none."""
        if name not in self._entries:
            raise ValueError(f"there is no extension {name!r}{suggestion(name, self._entries)}")
        return self._entries[name].extension

    def run(self, show_loop_exception_msg: bool = True) -> None:
        """Train until the stop trigger fires; can be called once.

        After an error in the loop the extensions' ``on_error`` is called, then extensions and
        updater are finalized, and the error is raised again with its own traceback. Ctrl-C
        finalizes them, too.

        Args:
            show_loop_exception_msg: add a note to an error that says in which iteration it was
                raised.

        Raises:
            RuntimeError: the trainer has been run to its end before.
        """
        if self._final_elapsed_time is not None:
            raise RuntimeError(
                "a trainer runs once: make another one, or load a snapshot into another one, "
                "to go on"
            )
        os.makedirs(self.out, exist_ok=True)
        entries = sorted(
            self._entries.values(),
            key=lambda entry: (-entry.priority, getattr(entry.extension, "is_last", False)),
        )
        error: BaseException | None = None
        try:
            self._start(entries)
            # the loaded state may be beyond the end
            if not is_over(self.stop_trigger, self.updater):
                self._loop(entries)
        except BaseException as raised:
            error = raised
            if isinstance(raised, Exception):
                self._tell(entries, raised, show_loop_exception_msg)
            raise
        finally:
            self._finalize(entries, error)
        self._final_elapsed_time = self.elapsed_time

    def _start(self, entries: list[ExtensionEntry]) -> None:
        self._start_at = time.perf_counter()
        # Extensions that load a snapshot come first: the other extensions then initialize from the
        # loaded state.
        for entry in sorted(
            entries, key=lambda entry: not getattr(entry.extension, "autoload", False)
        ):
            initialize = getattr(entry.extension, "initialize", None)
            over = getattr(entry.trigger, "finished", False) and not getattr(
                entry.extension, "restores", False
            )
            if initialize and not over:
                initialize(self)
        if self.is_before_training:
            self.observation = {}
            with self.reporter.scope(self.observation):
                for entry in entries:
                    if entry.call_before_training:
                        entry.extension(self)

    def _loop(self, entries: list[ExtensionEntry]) -> None:
        update = self.updater.update
        scope = self.reporter.scope
        stops = self.stop_trigger
        calls = [(entry.trigger, entry.extension) for entry in entries]
        while not stops(self):
            self.observation = {}
            answers: dict[
                int, bool
            ] = {}  # by the id of a trigger, which several extensions may share: it is asked once
            with scope(self.observation):
                update()
                for fires, extension in calls:
                    if (
                        answers[id(fires)]
                        if id(fires) in answers
                        else answers.setdefault(id(fires), fires(self))
                    ):
                        extension(self)

    def _tell(self, entries: list[ExtensionEntry], error: Exception, show: bool) -> None:
        """Call the extensions' ``on_error``; an error in one of them becomes a note of the first
        error.
        """
        if show:
            error.add_note(f"(in the training loop, after {self.updater.iteration} iterations)")
            if isinstance(error, StopIteration):
                error.add_note(
                    "(an iterator came to its end before training: repeat=True, or an earlier "
                    "stop trigger)"
                )
            if self.comm is not None and isinstance(error, MismatchError | DeadlockError):
                detail = getattr(self.updater, "epoch_detail", 0.0)
                error.add_note(
                    f"(rank {self.comm.rank} has had {detail:.4g} epochs: where data differ in "
                    "length, so do the iterations at "
                    "which an epoch ends; scatter_dataset gives equal lengths, and triggers "
                    "can count iterations)"
                )
        for entry in entries:
            handler = getattr(entry.extension, "on_error", None)
            if handler:
                try:
                    handler(self, error, error.__traceback__)
                except Exception as another:
                    error.add_note(
                        f"(on_error of {_name(entry)} raised {type(another).__name__}: {another})"
                    )

    def _finalize(self, entries: list[ExtensionEntry], error: BaseException | None) -> None:
        """Finalize extensions and updater; the first error in that is raised, unless training
        itself has failed.
        """
        failed: Exception | None = None
        finalizers = [
            (_name(entry), getattr(entry.extension, "finalize", None)) for entry in entries
        ]
        for name, finalize in [*finalizers, ("the updater", self.updater.finalize)]:
            try:
                if finalize:
                    finalize()
            except Exception as another:
                failed = failed or another
                if error is not None:
                    error.add_note(
                        f"(finalize of {name} raised {type(another).__name__}: {another})"
                    )
        if failed is not None and error is None:
            raise failed

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load all that training needs to continue, in a trainer that was made in the same
        way.

        The state is the updater (models, optimizers, iterators), triggers and extensions by name,
        the last observation (for the stop trigger) and the state of the rank's random generator,
        which only the rank that saved it loads.
        """
        self.updater.serialize(serializer["updater"])
        keep_part(serializer, "stop_trigger", self.stop_trigger)
        extensions = serializer["extensions"]
        triggers = serializer["extension_triggers"]
        for name, entry in self._entries.items():
            keep_part(extensions, name, entry.extension)
            keep_part(triggers, name, entry.trigger)
        rank = 0 if self.comm is None else self.comm.rank
        if isinstance(serializer, Deserializer):
            self._recall(serializer, rank)
        else:
            serializer(
                "_snapshot_elapsed_time",
                self._snapshot_elapsed_time if self._start_at is None else self.elapsed_time,
            )
            values = {name: _number(value) for name, value in self.observation.items()}
            serializer(
                "_observation",
                json.dumps({name: value for name, value in values.items() if value is not None}),
            )
            serializer("_random", json.dumps([rank, random.get_state()]))

    def _recall(self, serializer: AbstractSerializer, rank: int) -> None:
        self._loaded = True
        self._snapshot_elapsed_time = keep(
            serializer, "_snapshot_elapsed_time", self._snapshot_elapsed_time, float
        )
        self.observation = json.loads(keep(serializer, "_observation", "{}", str))
        saved_by, state = json.loads(keep(serializer, "_random", "[null, null]", str))
        if saved_by == rank:
            random.set_state(state)


def _name(entry: ExtensionEntry) -> str:
    return str(getattr(entry.extension, "name", None) or type(entry.extension).__name__)


def _number(value: Any) -> float | None:
    """Return a scalar as a float; None for anything else."""
    value = value.array if isinstance(value, Variable) else value
    if isinstance(value, int | float | np.number) or getattr(value, "ndim", None) == 0:
        with suppress(TypeError, ValueError):
            return float(value)
    return None
