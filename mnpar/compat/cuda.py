"""Chainer's older place of :mod:`mnpar.backends.cuda`."""

from mnpar.backends.cuda import *  # noqa: F403
from mnpar.backends.cuda import __all__, __getattr__  # noqa: F401 - of CuPy's names
