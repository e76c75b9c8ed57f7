"""A running mean and variance of weighted values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
from mnpar.meters.seen import on_host


class Average(NamedTuple):
    """Mean, unbiased variance (0 for one value, NaN for none) and sum of weights."""

    mean: float
    variance: float
    weight: float


class AverageValueMeter:
    """The weighted mean and variance of numbers.

    Example:
        >>> import mnpar
        >>> meter = mnpar.meters.AverageValueMeter()
        >>> meter.add([2, 3, 4])
        >>> meter.value()
        Average(mean=3.0, variance=1.0, weight=3.0)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._w, self._w2, self._mean, self._m2 = 0.0, 0.0, 0.0, 0.0  # Σw, Σw², mean, Σ w (x - mean)²

    def add(self, value: Any, weight: float = 1.0) -> None:
        """Take a number, or an array of numbers that all have this weight; weight 0 adds nothing."""
        x = on_host(value).astype(np.float64)
        if weight and x.size:
            mean = float(x.mean())
            self._merge(weight * x.size, weight * weight * x.size, mean, weight * float(((x - mean) ** 2).sum()))

    def _merge(self, w: float, w2: float, mean: float, m2: float) -> None:
        if not w:
            return
        total, distance = self._w + w, mean - self._mean
        self._m2 += m2 + distance * distance * self._w * w / total
        self._mean += distance * w / total
        self._w, self._w2 = total, self._w2 + w2

    def value(self) -> Average:
        """The average of everything since the last reset."""
        if not self._w:
            return Average(float("nan"), float("nan"), 0.0)
        free = self._w - self._w2 / self._w
        return Average(self._mean, self._m2 / free if free > 0 else 0.0, self._w)

    def sync(self, comm: Communicator) -> None:
        """Take what all ranks have seen; all call it."""
        parts = comm.allgather(np.array([self._w, self._w2, self._mean, self._m2]))
        self.reset()
        for part in parts:
            self._merge(*part.tolist())
