"""Chainer's ``function`` module: what programs still take from there. Your own functions are
:class:`mnpar.FunctionNode`.
"""

from mnpar.configuration import force_backprop_mode, no_backprop_mode
from mnpar.function_hook import FunctionHook

__all__ = ["FunctionHook", "force_backprop_mode", "no_backprop_mode"]
