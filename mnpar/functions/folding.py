"""Reductions over ranks other than the sum: all ranks' arrays are gathered, and reduced by
differentiable functions.

So max and min give the gradient to the lowest rank that holds the extremum (``maximum`` and
``minimum`` prefer their first argument), prod follows the product rule, zeros included, and all can
be differentiated any number of times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mnpar.functions.extrema import maximum, minimum
from mnpar.variable import Variable

FOLDS: dict[str, Callable[[Any, Any], Variable]] = {
    "max": maximum,
    "min": minimum,
    "prod": lambda x, y: x * y,
}
OPS = ("sum", "mean", *FOLDS)


def check_op(name: str, op: str) -> None:
    """Raises ValueError if there is no such reduction."""
    if op not in OPS:
        raise ValueError(f"{name} knows the reductions {', '.join(OPS)}, not {op!r}")


def fold(parts: Sequence[Variable], op: str) -> Variable:
    """The reduction of Variables of one shape, in their order."""
    return functools.reduce(FOLDS[op], parts)
