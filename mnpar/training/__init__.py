"""The training loop, and what is called in it: updaters, triggers, extensions."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.training import (
        extension as extension,
        extensions as extensions,
        trigger as trigger,
        triggers as triggers,
        updater as updater,
        updaters as updaters,
        util as util,
    )
    from mnpar.training.extension import (
        PRIORITY_EDITOR as PRIORITY_EDITOR,
        PRIORITY_READER as PRIORITY_READER,
        PRIORITY_WRITER as PRIORITY_WRITER,
        Extension as Extension,
        make_extension as make_extension,
    )
    from mnpar.training.trainer import Trainer as Trainer
    from mnpar.training.triggers import IntervalTrigger as IntervalTrigger
    from mnpar.training.triggers.interval import get_trigger as get_trigger
    from mnpar.training.updaters import (
        ParallelUpdater as ParallelUpdater,
        StandardUpdater as StandardUpdater,
    )
    from mnpar.training.updaters.updater import Updater as Updater
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
