"""Chainer's place of the updaters that are used most."""

from mnpar.training.updaters.parallel_updater import ParallelUpdater
from mnpar.training.updaters.standard_updater import StandardUpdater
from mnpar.training.updaters.updater import Updater

__all__ = ["ParallelUpdater", "StandardUpdater", "Updater"]
