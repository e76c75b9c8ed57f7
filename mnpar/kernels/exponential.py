"""Exponentials and logarithms of arrays: loops of formulas of scalar.py, whose twins are numpy's
functions.

Where registers are wide, numpy's are faster (``tuning.EXPONENTIAL_LEAST``). numpy warns of infinite
results and of arguments without a result; so where a loop finds a number that is not finite, numpy
computes all of them again and warns as it does without loops.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from mnpar.backend import Array, ArrayModule
from mnpar.kernels.fused import Fused, fused
from mnpar.kernels.scalar import exp as _number_exp, log as _number_log, log1p as _number_log1p


@fused(twin=lambda xp, x: xp.exp(x), least="EXPONENTIAL_LEAST")
def _exp(x: Any) -> Any:
    """Compute eˣ."""
    return _number_exp(x)


@fused(twin=lambda xp, x: xp.log(x), least="EXPONENTIAL_LEAST")
def _log(x: Any) -> Any:
    """Compute log x."""
    return _number_log(x)


@fused(twin=lambda xp, x: xp.log1p(x), least="LOG1P_LEAST")
def _log1p(x: Any) -> Any:
    """Compute log(1 + x)."""
    return _number_log1p(x)


def _or_as_numpy(loop: Fused[Array]) -> Callable[[ArrayModule, Array], Array]:
    def compute(xp: ArrayModule, x: Array) -> Array:
        if loop.takes(x):
            y = loop(x)
            flat = y.ravel("K")  # a view, in the order of memory
            if isfinite(flat.dot(flat)):  # the quickest way to ask all of them
                return y
        result: Array = loop.twin(xp, x)
        return result

    return compute


exp = _or_as_numpy(_exp)
"""eˣ of each element."""
log = _or_as_numpy(_log)
"""The natural logarithm of each element."""
log1p = _or_as_numpy(_log1p)
"""log(1 + x) of each element, exact for small x too."""
