"""The training loop, and what is called in it: updaters, triggers, extensions."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.training import extension, extensions, trigger, triggers, updater, updaters, util
    from mnpar.training.extension import (
        PRIORITY_EDITOR,
        PRIORITY_READER,
        PRIORITY_WRITER,
        Extension,
        make_extension,
    )
    from mnpar.training.trainer import Trainer
    from mnpar.training.triggers import IntervalTrigger
    from mnpar.training.triggers.interval import get_trigger
    from mnpar.training.updaters import ParallelUpdater, StandardUpdater
    from mnpar.training.updaters.updater import Updater
else:
    __getattr__, __dir__ = lazy.names(__name__)

__all__ = [
    "PRIORITY_EDITOR",
    "PRIORITY_READER",
    "PRIORITY_WRITER",
    "Extension",
    "IntervalTrigger",
    "ParallelUpdater",
    "StandardUpdater",
    "Trainer",
    "Updater",
    "extension",
    "extensions",
    "get_trigger",
    "make_extension",
    "trigger",
    "triggers",
    "updater",
    "updaters",
    "util",
]
