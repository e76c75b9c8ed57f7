"""What is measured while a model learns, on one rank or over all: means, counts, errors, times.

A meter sums up what it is given; ``value()`` is what that comes to, ``reset()`` forgets it. ``sync(comm)``, called by all
ranks, puts together what they have seen: after it each rank's meter says what one would that had seen everything. (So a meter
that goes on is reset after it: what is put together twice counts twice.) After flashlight's meters, with its numbers; the file
is long because there are seven of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


def _host(x: Any) -> Array:
    return np.asarray(backend.to_host(getattr(x, "array", x)))


def _pair(output: Any, target: Any) -> tuple[Array, Array]:
    output, target = _host(output), _host(target)
    if output.shape != target.shape:
        raise ValueError(f"outputs of shape {output.shape} are compared with targets of shape {target.shape}")
    return output, target


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
        x = _host(value).astype(np.float64)
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
        """Of everything since the last reset."""
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


class _Sums:
    """A meter whose state is a vector of sums."""

    _size = 1

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums = np.zeros(self._size)

    def sync(self, comm: Communicator) -> None:
        """Take what all ranks have seen; all call it."""
        self._sums = comm.allreduce(self._sums)

    def _share(self, part: float, whole: float) -> float:
        """In percent; of nothing, 0."""
        return float(100 * part / whole) if whole else 0.0


class CountMeter(_Sums):
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
        """So many of one thing.

        Raises:
            IndexError: there is no such thing.
        """
        if not 0 <= index < self._size:
            raise IndexError(f"this meter counts {self._size} things: there is no number {index}")
        self._sums[index] += count

    def value(self) -> list[int]:
        """Of each thing."""
        return [int(n) for n in self._sums]


class Edits(NamedTuple):
    """The rate in percent of the targets' length, that length, and the edits that make targets of the outputs."""

    rate: float
    length: int
    deletions: int
    insertions: int
    substitutions: int


class EditDistanceMeter(_Sums):
    """How many deletions, insertions and substitutions make sequences of others (Levenshtein's distance).

    Example:
        >>> import mnpar
        >>> meter = mnpar.meters.EditDistanceMeter()
        >>> meter.add([1, 2, 3, 4, 5], [1, 1, 3, 3, 5, 6])
        >>> meter.value()
        Edits(rate=50.0, length=6, deletions=0, insertions=1, substitutions=2)
    """

    _size = 4  # length, deletions, insertions, substitutions

    def add(self, output: Sequence[Any] | Array, target: Sequence[Any] | Array) -> None:
        """Compare two sequences: strings, lists, arrays of one axis; ``output`` is edited."""
        self._sums += [len(target), *_edits(_plain(output), _plain(target))]

    def value(self) -> Edits:
        """Of everything since the last reset."""
        length, *edits = [int(n) for n in self._sums]
        return Edits(self._share(sum(edits), length), length, *edits)


def _plain(x: Any) -> list[Any]:
    return list(_host(x)) if hasattr(x, "array") or backend.is_array(x) else list(x)


def _edits(output: list[Any], target: list[Any]) -> tuple[int, int, int]:
    """(deletions, insertions, substitutions) of a shortest way; row by row, each cell (cost, deletions, insertions, subs)."""
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


class FrameErrorMeter(_Sums):
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

    def add(self, output: Any, target: Any) -> None:
        """Compare two arrays of one shape, element by element."""
        output, target = _pair(output, target)
        self._sums += [(output != target).sum(), output.size]

    def value(self) -> float:
        """In percent."""
        wrong, n = self._sums
        return self._share(n - wrong if self.accuracy else wrong, n)


class MSEMeter(_Sums):
    """The mean over samples of their squared distance from the target, Σ (output - target)².

    Example:
        >>> import mnpar
        >>> meter = mnpar.meters.MSEMeter()
        >>> meter.add([1, 2, 3, 4, 5], [4, 5, 6, 7, 8])
        >>> meter.value()
        45.0
    """

    _size = 2  # squares, samples

    def add(self, output: Any, target: Any, samples: int = 1) -> None:
        """Compare two arrays of one shape, which hold so many samples."""
        output, target = _pair(output, target)
        self._sums += [((output.astype(np.float64) - target) ** 2).sum(), samples]

    def value(self) -> float:
        """0 for no samples."""
        squares, n = self._sums
        return float(squares / n) if n else 0.0


class TopKMeter(_Sums):
    """The percentage of samples whose class is among the k that got the highest scores.

    Args:
        k: how many.

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
            raise ValueError(f"the best k are 1 or more, not {k}")
        self.k = k
        super().__init__()

    def add(self, output: Any, target: Any) -> None:
        """Scores (N, C), and classes (N,). Of equal scores the lower class comes first."""
        scores, classes = _host(output), _host(target)
        if scores.ndim != 2 or classes.shape != scores.shape[:1]:
            raise ValueError(f"scores are (N, C) and classes (N,), not {scores.shape} and {classes.shape}")
        best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, : self.k]
        self._sums += [(best == classes[:, None]).sum(), len(classes)]

    def value(self) -> float:
        """In percent."""
        return self._share(*self._sums)


class TimeMeter:
    """A stop watch: the time that it ran, or, with ``unit``, that time per unit.

    Args:
        unit: divide by the units that :meth:`inc_unit` has counted.
        clock: gives seconds.

    Example:
        >>> import mnpar
        >>> now = iter([10.0, 13.0]).__next__
        >>> meter = mnpar.meters.TimeMeter(unit=True, clock=now)
        >>> meter.resume()
        >>> meter.inc_unit(6)
        >>> meter.stop()
        >>> meter.value()
        0.5
    """

    def __init__(self, unit: bool = False, clock: Callable[[], float] = time.perf_counter) -> None:
        self.unit, self._clock = unit, clock
        self.reset()

    def reset(self) -> None:
        """Back to 0, and stopped."""
        self.set(0.0, 0)
        self._since: float | None = None

    def set(self, seconds: float, units: float = 1) -> None:
        """What it shows."""
        self._seconds, self._units = seconds, units

    def resume(self) -> None:
        """Start it, if it stands."""
        self._since = self._clock() if self._since is None else self._since

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._since is not None:
            self._seconds, self._since = self._seconds + self._clock() - self._since, None

    def stop_and_inc_unit(self, units: int = 1) -> None:
        """Both."""
        self.stop()
        self.inc_unit(units)

    def inc_unit(self, units: int = 1) -> None:
        """Count units of work."""
        self._units += units

    def value(self) -> float:
        """Seconds, or seconds per unit (0 for no units)."""
        seconds = self._seconds + (0.0 if self._since is None else self._clock() - self._since)
        if not self.unit:
            return seconds
        return seconds / self._units if self._units else 0.0

    def sync(self, comm: Communicator) -> None:
        """Stop, and show the means over ranks; all call it."""
        self.stop()
        seconds, units = comm.allreduce(np.array([self._seconds, self._units]), "mean")
        self.set(float(seconds), float(units))


def sync(meters: Iterable[Any], comm: Communicator) -> None:
    """Put several meters together over ranks, in their order; all call it with the same kinds.

    Args:
        meters: any of these.
        comm: the ranks.

    Example:
        >>> import mnpar
        >>> def program(comm):
        ...     meter = mnpar.meters.AverageValueMeter()
        ...     meter.add(10.0 * comm.rank, weight=comm.rank)
        ...     mnpar.meters.sync([meter], comm)
        ...     return round(meter.value().mean, 3)
        >>> mnpar.run(program, ranks=3)
        [16.667, 16.667, 16.667]
    """
    for meter in meters:
        meter.sync(comm)
