"""Chainer's place of the updaters that are used most."""

from mnpar.training.updaters.parallel_updater import ParallelUpdater as ParallelUpdater
from mnpar.training.updaters.standard_updater import StandardUpdater as StandardUpdater
from mnpar.training.updaters.updater import Updater as Updater
