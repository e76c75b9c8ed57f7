"""Meters that compare outputs with targets: counts, error rates, edit distances, squared errors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.autograd.arraylike import ArrayLike
from mnpar.backend import Array
from mnpar.meters.meter import SumMeter, on_host, require_one_shape


class CountMeter(SumMeter):
    """Counts of several things.

    Args:
        n: how many things.

    Example:
        >>> import mnpar
        >>> meter = mnpar.meters.CountMeter(3)
        >>> meter.add(0, 10), meter.add(1, 11), meter.add(0, 12)
        (None, None, None)
        >>> meter.value()
        [22, 11, 0]
    """

    def __init__(self, n: int) -> None:
        self._size = n
        super().__init__()

    def reset(self) -> None:
        """Forget everything."""
        self._sums = np.zeros(self._size, np.int64)

    def add(self, index: int, count: int = 1) -> None:
        """Count so many more of one thing.

        Raises:
            IndexError: there is no such thing; TypeError: a fraction of one.
        """
        index = operator.index(index)
        count = operator.index(count)
        if not 0 <= index < self._size:
            raise IndexError(f"this meter counts {self._size} things: there is no number {index}")
        self._sums[index] += count

    def value(self) -> list[int]:
        """Return how many there were of each thing."""
        return [int(n) for n in self._sums]


class Edits(NamedTuple):
    """The rate in percent of the targets' length, that length, and the edits that make targets of
    the outputs.
    """

    rate: float
    length: int
    deletions: int
    insertions: int
    substitutions: int


class EditDistanceMeter(SumMeter):
    """The deletions, insertions and substitutions that make sequences of others (Levenshtein's
    distance).

    Example:
        >>> import mnpar
        >>> meter = mnpar.meters.EditDistanceMeter()
        >>> meter.add([1, 2, 3, 4, 5], [1, 1, 3, 3, 5, 6])
        >>> meter.value()
        Edits(rate=50.0, length=6, deletions=0, insertions=1, substitutions=2)
    """

    _size = 4  # length, deletions, insertions, substitutions

    def add(self, output: Sequence[Any] | Array, target: Sequence[Any] | Array) -> None:
        """Compare two sequences: strings, lists, arrays of one axis; ``output`` is edited.

        Raises:
            ValueError: arrays of another number of axes.
        """
        self._sums += [len(target), *_edits(_plain(output), _plain(target))]

    def value(self) -> Edits:
        """Return the rate of everything since the last reset."""
        length, *edits = [int(n) for n in self._sums]
        return Edits(self._share(sum(edits), length), length, *edits)


def _plain(x: Any) -> list[Any]:
    if not (hasattr(x, "array") or backend.is_array(x)):
        return list(x)
    if on_host(x).ndim != 1:
        raise ValueError(
            f"a sequence is an array of one axis, not of shape {on_host(x).shape}: add them "
            "one by one"
        )
    return list(on_host(x))


def _edits(output: list[Any], target: list[Any]) -> tuple[int, int, int]:
    """(deletions, insertions, substitutions) of a shortest way; row by row, each cell (cost,
    deletions, insertions, subs).
    """
    row = [(j, 0, j, 0) for j in range(len(target) + 1)]
    for i, x in enumerate(output, start=1):
        above, row = row, [(i, i, 0, 0)]
        for j, t in enumerate(target, start=1):
            cost, d, n, s = above[j - 1]
            best = (cost, d, n, s) if x == t else (cost + 1, d, n, s + 1)
            cost, d, n, s = above[j]
            best = min(best, (cost + 1, d + 1, n, s), key=lambda cell: cell[0])
            cost, d, n, s = row[j - 1]
            row.append(min(best, (cost + 1, d, n + 1, s), key=lambda cell: cell[0]))
    return row[-1][1:]


class FrameErrorMeter(SumMeter):
    """The percentage of elements that differ; with ``accuracy``, of those that do not.

    Args:
        accuracy: count what is right.

    Example:
        >>> import mnpar
        >>> meter = mnpar.meters.FrameErrorMeter()
        >>> meter.add([1, 2, 3, 4, 5], [1, 1, 3, 3, 5])
        >>> meter.value()
        40.0
    """

    _size = 2  # wrong, all

    def __init__(self, accuracy: bool = False) -> None:
        self.accuracy = accuracy
        super().__init__()

    def add(self, output: ArrayLike | Array, target: ArrayLike | Array) -> None:
        """Compare two arrays of one shape, element by element."""
        output, target = require_one_shape(output, target)
        self._sums += [(output != target).sum(), output.size]

    def value(self) -> float:
        """In percent."""
        wrong, n = self._sums
        return self._share(n - wrong if self.accuracy else wrong, n)


class MSEMeter(SumMeter):
    """The mean over samples of their squared distance from the target, ``Σ |output - target|²``.

    Example:
        >>> import mnpar
        >>> meter = mnpar.meters.MSEMeter()
        >>> meter.add([1, 2, 3, 4, 5], [4, 5, 6, 7, 8])
        >>> meter.value()
        45.0
    """

    _size = 2  # squares, samples

    def add(self, output: ArrayLike | Array, target: ArrayLike | Array, samples: int = 1) -> None:
        """Compare two arrays of one shape, which hold so many samples."""
        output, target = require_one_shape(output, target)
        if samples < 0:
            raise ValueError(f"arrays hold 0 samples or more, not {samples}")
        distance = output.astype(np.result_type(output.dtype, np.float64)) - target
        self._sums += [(abs(distance) ** 2).sum(), samples]

    def value(self) -> float:
        """0 for no samples."""
        squares, n = self._sums
        return float(squares / n) if n else 0.0


class TopKMeter(SumMeter):
    """The percentage of samples whose class is among the k that got the highest scores.

    Args:
        k: how many.

    Raises:
        ValueError: k is less than 1.

    Example:
        >>> import numpy as np, mnpar
        >>> meter = mnpar.meters.TopKMeter(2)
        >>> meter.add(np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]]), np.array([2, 2]))
        >>> meter.value()
        50.0
    """

    _size = 2  # right, all

    def __init__(self, k: int) -> None:
        if k < 1:
            raise ValueError(f"k must be 1 or more, not {k}")
        self.k = k
        super().__init__()

    def add(self, output: ArrayLike | Array, target: ArrayLike | Array) -> None:
        """Add scores (N, C), and classes (N,). Among equal scores the lower class comes first."""
        scores = on_host(output)
        classes = on_host(target)
        if scores.ndim != 2 or classes.shape != scores.shape[:1]:
            raise ValueError(
                f"scores are (N, C) and classes (N,), not {scores.shape} and {classes.shape}"
            )
        best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, : self.k]
        self._sums += [(best == classes[:, None]).sum(), len(classes)]

    def value(self) -> float:
        """In percent."""
        return self._share(*self._sums)
