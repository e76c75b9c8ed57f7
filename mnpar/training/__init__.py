"""The training loop, and what is called in it: updaters, triggers, extensions."""

from mnpar.training import extension, extensions, trigger, triggers, updaters, util
from mnpar.training.extension import PRIORITY_EDITOR, PRIORITY_READER, PRIORITY_WRITER, Extension, make_extension
from mnpar.training.trainer import Trainer
from mnpar.training.triggers import IntervalTrigger
from mnpar.training.triggers.interval import get_trigger
from mnpar.training.updater import Updater
from mnpar.training.updaters import ParallelUpdater, StandardUpdater

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
    "updaters",
    "util",
]
