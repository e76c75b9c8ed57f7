"""The logistic function and log(1 + eˣ) of arrays, in blocks that stay in the cache.

They are numerically stable: no exponential of a large positive number is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.kernels.dtypes import as_floating, upcast_halves
from mnpar.kernels.fused import fused
from mnpar.kernels.scalar import exp, log1p_up_to_1, logistic as _logistic
from mnpar.kernels.sums import split_arrays


def compute_in_blocks(
    vjp: Callable[[Any, Array, Array, Array], None], y: Array, gy: Array
) -> Array:
    """Return the gx that ``vjp(xp, y, gy, gx)`` writes, element by element: of large arrays in
    blocks, which stay in the cache.
    """
    xp = backend.get_array_module(y)
    gx = xp.empty_like(y)
    if y.nbytes <= (most := backend.block_bytes(y) // 8) or not (
        y.flags.c_contiguous and gy.flags.c_contiguous
    ):
        vjp(xp, y, gy, gx)
    else:
        for block in split_arrays(
            most // y.itemsize, y.reshape(-1), gy.reshape(-1), gx.reshape(-1)
        ):
            vjp(xp, *block)
    return gx


def _logistic_in_blocks(xp: ArrayModule, x: Array) -> Array:
    x = as_floating(x)
    y = xp.empty(x.shape, x.dtype if x.dtype.kind == "f" else "d")
    with np.errstate(over="ignore"):
        for from_, to in split_arrays(backend.block_bytes(x) // 32, x.reshape(-1), y.reshape(-1)):
            z = to if to.dtype.char != "e" else upcast_halves(to)
            xp.exp(xp.negative(from_, out=z), out=z)
            z += 1
            xp.divide(1, z, out=z)
            if z is not to:
                to[...] = z
    return y


@fused(twin=_logistic_in_blocks, least="COSTLY_LEAST")
def logistic(x: Any) -> Any:
    """Return 1 / (1 + e⁻ˣ); where e⁻ˣ is ∞ it is 0."""
    return _logistic(x)


def _log1p_exp_in_blocks(xp: ArrayModule, x: Array) -> Array:
    y = xp.empty(x.shape, x.dtype if x.dtype.kind == "f" else "d")
    n = backend.block_bytes(x) // 32
    room = backend.empty_aligned((min(n, y.size),), y.dtype, xp)
    for from_, to in split_arrays(n, x.reshape(-1), y.reshape(-1)):
        e = room[: to.size]
        xp.negative(xp.absolute(from_, out=e), out=e)
        xp.log1p(xp.exp(e, out=e), out=e)
        xp.add(xp.maximum(from_, 0), e, out=to)
    return y


@fused(twin=_log1p_exp_in_blocks, least="COSTLY_LEAST")
def log1p_exp(x: Any) -> Any:
    """Return log(1 + eˣ), computed as max(x, 0) + log(1 + e⁻ˡˣˡ)."""
    return (0.0 if x < 0.0 else x) + log1p_up_to_1(exp(x if x < 0.0 else -x))
