"""Randomness that regularizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.config import config
from mnpar.function_node import FunctionNode
from mnpar.random import generator
from mnpar.variable import as_variable


class Dropout(FunctionNode):
    """Multiplies by a mask that is no variable of the graph."""

    generic = True

    def __init__(self, mask: Array) -> None:
        self.mask = mask

    def forward(self, x: Array) -> Array:
        return x * self.mask

    def backward(self, gy: Any) -> Any:
        return lambda: gy * self.mask


def dropout(
    x: Any, ratio: float = 0.5, *, mask: Array = None, return_mask: bool = False, rng: np.random.Generator | None = None
) -> Any:
    """Set a share of the elements to 0 and enlarge the others so that the mean stays, while ``config.train`` is on.

    Args:
        x: an array or Variable.
        ratio: the probability of 0, at least 0 and less than 1.
        mask: what to multiply with instead of a new mask: 0 or ``1 / (1 - ratio)`` for each element.
        return_mask: whether to return the mask too.
        rng: where the numbers are drawn from; None takes this rank's :func:`mnpar.random.generator`. They are drawn on the
            host, so that the same seed drops the same elements on every kind of device.

    Returns:
        A Variable, ``x`` itself while ``config.train`` is off; with ``return_mask``, a pair with the mask (then None).

    Raises:
        ValueError: the ratio is outside [0, 1), or the mask has another shape than ``x``.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> F.dropout(np.ones(4), mask=np.array([2.0, 0.0, 0.0, 2.0])).array
        array([2., 0., 0., 2.])

    Source:
        Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15 (2014).
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"dropout: the ratio {ratio} is outside [0, 1)")
    y = x = as_variable(x)
    if not config.train:
        return (x, None) if return_mask else x
    if mask is None:
        mask = _draw(x.array, ratio, rng or generator())
    elif mask.shape != x.shape:
        raise ValueError(f"dropout: a mask of shape {mask.shape} does not fit x of shape {x.shape}")
    (y,) = Dropout(mask).apply((x,))
    return (y, mask) if return_mask else y


def _draw(x: Array, ratio: float, rng: np.random.Generator) -> Array:
    stay = rng.random(x.shape, np.float32) >= ratio
    return backend.like(np.multiply(stay, 1 / (1 - ratio), dtype=x.dtype), x)
