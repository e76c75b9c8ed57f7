"""What one iteration of training does."""

from mnpar.training.updaters.parallel_updater import MultiprocessParallelUpdater, ParallelUpdater
from mnpar.training.updaters.standard_updater import StandardUpdater

__all__ = ["MultiprocessParallelUpdater", "ParallelUpdater", "StandardUpdater"]
