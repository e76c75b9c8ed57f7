"""Extensions: functions of the trainer, called after updates, with optional attributes that this
file defines.

Extensions that write into the trainer's observation come first, then those that change it, then
those that read it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from mnpar.hints import KeywordHints
from mnpar.serializer import AbstractSerializer, Deserializer

# a function of the trainer that returns whether it is time
Trigger: TypeAlias = Callable[[Any], bool]
# an argument that becomes a trigger: a pair, (2, "epoch"), counts; None never fires
TriggerLike: TypeAlias = Trigger | tuple[float, str] | None

PRIORITY_WRITER = 300
PRIORITY_EDITOR = 200
PRIORITY_READER = 100


class Extension(KeywordHints):
    """The base of extensions: called with the trainer whenever their trigger fires.

    Attributes:
        trigger: when it is called, unless ``Trainer.extend`` is given another trigger.
        priority: extensions of an iteration are called in the order of their priorities, the
            highest first.
        name: its name in the trainer; None: ``default_name``.

    Example:
        >>> from mnpar import training
        >>> class Shout(training.Extension):
        ...     trigger = (1, "epoch")
        ...
        ...     def __call__(self, trainer):
        ...         print("EPOCH", trainer.updater.epoch)
        >>> Shout().default_name
        'Shout'
    """

    trigger: TriggerLike = (1, "iteration")
    priority = PRIORITY_READER
    name: str | None = None

    @property
    def default_name(self) -> str:
        """Its name in the trainer unless it is given one: the name of the class."""
        return type(self).__name__

    def __call__(self, trainer: Any) -> Any:
        """Do the extension's work; each kind of extension defines it."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(self, trainer)")

    def initialize(self, trainer: Any) -> None:
        """Called once before the first update, after a snapshot was loaded."""

    def finalize(self) -> None:
        """Called once after the last update, after an error too. It must not wait for other
        ranks.
        """

    def on_error(self, trainer: Any, exc: Exception, tb: TracebackType | None) -> None:
        """Called when an update or an extension raised, before ``finalize``."""

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load its state."""


def make_extension(
    trigger: TriggerLike = None,
    default_name: str | None = None,
    priority: int | None = None,
    finalizer: Callable[[], None] | None = None,
    initializer: Callable[[Any], None] | None = None,
    on_error: Callable[[Any, Exception, TracebackType | None], None] | None = None,
) -> Callable[[Any], Any]:
    """Return a decorator that gives a function the attributes of an :class:`Extension`.

    Args:
        trigger: when it is called; None: at each iteration.
        default_name: its name in the trainer; None: the function's.
        priority: its place among the others; None: ``PRIORITY_READER``.
        finalizer: called after the last update.
        initializer: called with the trainer before the first update.
        on_error: called with trainer, error and traceback when the loop raised.

    Example:
        >>> from mnpar import training
        >>> @training.make_extension(trigger=(1, "epoch"))
        ... def shout(trainer):
        ...     print("EPOCH", trainer.updater.epoch)
        >>> shout.trigger, shout.default_name
        ((1, 'epoch'), 'shout')
    """

    def decorate(extension: Any) -> Any:
        extension.trigger = Extension.trigger if trigger is None else trigger
        extension.default_name = default_name or extension.__name__
        extension.priority = Extension.priority if priority is None else priority
        extension.finalize = finalizer
        extension.initialize = initializer
        extension.on_error = on_error
        return extension

    return decorate


def keep(serializer: AbstractSerializer, key: str, value: Any, kind: Callable[[Any], Any]) -> Any:
    """Save or load a number or a string. None is not saved; a value that the file does not have
    stays as it is.

    Args:
        serializer: of either direction.
        key: in the file.
        value: the present one.
        kind: ``int``, ``float``, ``bool`` or ``str``.
    """
    if not isinstance(serializer, Deserializer):
        if value is not None:
            serializer(key, kind(value))
        return value
    try:
        found = serializer(key, None if value is None else kind(value))
    except KeyError:
        return value
    found = None if found is None else np.asarray(found)[()]
    return value if found is None else kind(found)


def keep_part(serializer: AbstractSerializer, key: str, part: object) -> None:
    """Save or load a trigger or an extension under ``key``; one without ``serialize`` has no
    state.
    """
    if hasattr(part, "serialize"):
        part.serialize(serializer[key])
