"""Parameters that have got a gradient, and that are in no optimizer's flat buffer.

A layer that a program holds in a closure, a global or an object of its own is in no link, so no
optimizer finds its parameters. Backward does: it notes them, and an optimizer asks at its first
step (mnpar/optimizers/untrained.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any
from weakref import ReferenceType

from mnpar.autograd.graph import VariableNode

_latest: ContextVar[tuple[ReferenceType[Any], ...]] = ContextVar(
    "mnpar.autograd.unclaimed", default=()
)


def note_unclaimed(nodes: Iterable[VariableNode]) -> None:
    """Note those of the nodes that are parameters', if any are.

    Args:
        nodes: leaves without a slot, each with its first gradient.
    """
    found = [one for node in nodes if (one := getattr(node, "parameter", None)) is not None]
    if found:
        _latest.set(tuple(found))


def unclaimed_parameters() -> list[Any]:
    """Return the parameters of the last backward of this rank that found such ones."""
    return [param for one in _latest.get() if (param := one()) is not None]


def forget_unclaimed() -> None:
    """Forget what earlier backwards found."""
    _latest.set(())
