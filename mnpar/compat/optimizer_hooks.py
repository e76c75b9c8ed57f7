"""Chainer's ``optimizer_hooks`` module: functions that an optimizer calls before each update."""

from mnpar.optimizers.hooks import *  # noqa: F403
from mnpar.optimizers.hooks import __all__  # noqa: F401
