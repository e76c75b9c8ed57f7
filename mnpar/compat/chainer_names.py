"""Puts names into the modules in which Chainer has them, but which mnpar's layers do not let import
them.

Without this table, ``link`` would have to import ``chain``, and ``chain`` imports ``link``.
"""

from types import ModuleType
from typing import Any

from mnpar import function_node, link, variable
from mnpar.chain import Chain, ChainList
from mnpar.parameter import Parameter
from mnpar.sequential import Sequential

__all__: list[str] = []

PLACES: tuple[tuple[ModuleType, tuple[Any, ...]], ...] = (
    (variable, (Parameter,)),
    (link, (Chain, ChainList, Sequential)),
    (function_node, (variable.grad,)),
)

for _module, _values in PLACES:
    for _value in _values:
        setattr(_module, _value.__name__, _value)
