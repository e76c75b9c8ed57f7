"""Names in the modules where Chainer and ChainerMN have them, and which here lie below what the names stand for.

Without this table, ``links`` would have to import ``parallel``, and ``parallel`` imports ``links``.
"""

from types import ModuleType
from typing import Any

from mnpar import function_node, link, links, optimizers, variable
from mnpar.chain import Chain, ChainList, Sequential
from mnpar.parallel import MultiNodeChainList, create_multi_node_optimizer
from mnpar.parameter import Parameter
from mnpar.training import trigger, updater
from mnpar.training.triggers import IntervalTrigger
from mnpar.training.updaters import ParallelUpdater, StandardUpdater

__all__: list[str] = []

PLACES: tuple[tuple[ModuleType, tuple[Any, ...]], ...] = (
    (variable, (Parameter,)),
    (link, (Chain, ChainList, Sequential)),
    (function_node, (variable.grad,)),
    (links, (MultiNodeChainList,)),
    (optimizers, (create_multi_node_optimizer,)),
    (trigger, (IntervalTrigger,)),
    (updater, (StandardUpdater, ParallelUpdater)),
)

for _module, _values in PLACES:
    for _value in _values:
        setattr(_module, _value.__name__, _value)
