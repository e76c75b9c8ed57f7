"""What one iteration of training does."""

from mnpar.training.updaters.parallel_updater import ParallelUpdater
from mnpar.training.updaters.standard_updater import StandardUpdater

__all__ = ["ParallelUpdater", "StandardUpdater"]
