"""Updaters: each defines one iteration of training."""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.training.updaters.parallel_updater import (
        MultiprocessParallelUpdater as MultiprocessParallelUpdater,
        ParallelUpdater as ParallelUpdater,
    )
    from mnpar.training.updaters.standard_updater import StandardUpdater as StandardUpdater
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
