"""The weighted mean and variance of values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mnpar.autograd.arraylike import ArrayLike
from mnpar.backend import Array
from mnpar.meters.meter import gather_states, on_host

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


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
        # Σw, Σw², mean, Σ w (x - mean)²
        self._w, self._w2, self._mean, self._m2 = (
            0.0,
            0.0,
            0.0,
            0.0,
        )

    def add(self, value: ArrayLike | Array, weight: float = 1.0) -> None:
        """Add a number, or an array of numbers that all have this weight; weight 0 adds nothing.

        Raises:
            ValueError: a weight below 0, or none; TypeError: complex numbers.
        """
        x = on_host(value)
        if not weight >= 0:
            raise ValueError(f"a weight must be 0 or more, not {weight}")
        if x.dtype.kind not in "biufV":
            raise TypeError(f"an average must be one of real numbers, not of {x.dtype}")
        if weight and x.size:
            x = x.astype(np.float64)
            with np.errstate(invalid="ignore"):  # of infinite values: their variance is NaN
                mean = float(x.mean())
                self._merge(
                    weight * x.size,
                    weight * weight * x.size,
                    mean,
                    weight * float(((x - mean) ** 2).sum()),
                )

    def _merge(self, w: float, w2: float, mean: float, m2: float) -> None:
        if not w:
            return
        total = self._w + w
        distance = mean - self._mean
        self._m2 += m2 + distance * distance * (self._w * w / total)
        if math.isfinite(distance):
            self._mean += distance * w / total
        else:  # an infinite mean stays one, as numpy's
            self._mean = (self._mean if self._w else 0.0) + mean
        self._w, self._w2 = total, self._w2 + w2

    def value(self) -> Average:
        """Return the average of everything since the last reset."""
        if not self._w:
            return Average(float("nan"), float("nan"), 0.0)
        free = self._w - self._w2 / self._w
        return Average(self._mean, self._m2 / free if free > 0 else 0.0, self._w)

    def sync(self, comm: Communicator) -> None:
        """Combine the meters of all ranks, which all call this."""
        parts = gather_states(self, np.array([self._w, self._w2, self._mean, self._m2]), comm)
        self.reset()
        for part in parts:
            self._merge(*part.tolist())
