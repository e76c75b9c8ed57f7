"""Reporting: models report values such as losses, this rank's current Reporter collects them, and
summaries average them over iterations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, TypeAlias

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.checks.graph_checks import check_reported
from mnpar.configuration import config
from mnpar.serializer import AbstractSerializer, Deserializer
from mnpar.variable import Variable

__all__ = ["DictSummary", "Reporter", "Summary", "get_current_reporter", "report", "report_scope"]

_current: ContextVar[Reporter | None] = ContextVar("mnpar.reporter", default=None)

# a value that is reported: a number, an array of one element, a Variable
Reported: TypeAlias = Variable | Array | float


class Reporter:
    """Collects reported values under the names of the links that report them.

    Example:
        >>> import mnpar
        >>> reporter = mnpar.Reporter()
        >>> with reporter:
        ...     mnpar.report({"loss": 0.5})
        >>> reporter.observation
        {'loss': 0.5}
    """

    def __init__(self) -> None:
        self.observation: dict[str, Any] = {}
        self._names: dict[int, tuple[str, object]] = {}
        self._tokens: list[Token[Reporter | None]] = []

    def __enter__(self) -> Reporter:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())

    @contextmanager
    def scope(self, observation: dict[str, Any]) -> Iterator[None]:
        """Collect into another dict inside a ``with`` block."""
        before, self.observation = self.observation, observation
        with self:
            try:
                yield
            finally:
                self.observation = before

    def add_observer(self, name: str, observer: object) -> None:
        """The name under which an object reports.

        Args:
            name: its values are then ``name/…``.
            observer: any object; the reporter keeps it alive.
        """
        self._names[id(observer)] = (name, observer)  # held, so that its id stays its own

    def add_observers(self, prefix: str, observers: Iterable[tuple[str, object]]) -> None:
        """Names for several, as ``link.namedlinks()`` gives them."""
        for name, observer in observers:
            self.add_observer(prefix + name, observer)

    def report(self, values: Mapping[str, Reported], observer: object = None) -> None:
        """Take values; those of an observer under its name.

        Raises:
            KeyError: the observer was not added.
        """
        prefix = ""
        if observer is not None:
            if id(observer) not in self._names:
                raise KeyError(
                    f"{type(observer).__name__} reports, but was not added: "
                    "reporter.add_observer(name, it)"
                )
            prefix = self._names[id(observer)][0] + "/"
        for name, value in values.items():
            if isinstance(value, Variable) and value.node.creator is not None:
                check_reported(prefix + name, value)
            if isinstance(value, Variable) and not config.keep_graph_on_report:
                value = Variable(value.array, requires_grad=False)
            self.observation[prefix + name] = value


def report(values: Mapping[str, Reported], observer: object = None) -> None:
    """Hand values to this rank's current reporter; without one, nothing happens.

    Args:
        values: by name; Variables are taken without their graph.
        observer: the link that speaks.

    Raises:
        KeyError: the current reporter does not know the observer.

    Example:
        >>> import mnpar
        >>> mnpar.report({"loss": 0.5})
    """
    reporter = _current.get()
    if reporter is not None:
        reporter.report(values, observer)


@contextmanager
def report_scope(observation: dict[str, Any]) -> Iterator[None]:
    """Let the current reporter collect into ``observation`` inside a ``with`` block.

    Raises:
        RuntimeError: there is no current reporter.

    Example:
        >>> import mnpar
        >>> mine = {}
        >>> with mnpar.Reporter(), mnpar.report_scope(mine):
        ...     mnpar.report({"loss": 0.5})
        >>> mine
        {'loss': 0.5}
    """
    reporter = _current.get()
    if reporter is None:
        raise RuntimeError("there is no current reporter: with mnpar.Reporter(): …")
    with reporter.scope(observation):
        yield


def get_current_reporter() -> Reporter | None:
    """This rank's current reporter, the innermost ``with``; None without one.

    Example:
        >>> import mnpar
        >>> with mnpar.Reporter() as reporter:
        ...     mnpar.get_current_reporter() is reporter
        True
    """
    return _current.get()


Sums = tuple[float, float, float]  # Σ w x, Σ w x², Σ w


class Summary:
    """The weighted mean and standard deviation of scalars.

    Example:
        >>> import mnpar
        >>> summary = mnpar.Summary()
        >>> summary.add(1.0, weight=3)
        >>> summary.add(5.0)
        >>> summary.compute_mean()
        2.0
    """

    def __init__(self) -> None:
        self._x: Any = 0.0  # Σ w x
        self._x2: Any = 0.0  # Σ w x²
        self._n: Any = 0  # Σ w

    def add(self, value: Any, weight: Any = 1) -> None:
        """Add a scalar.

        Args:
            value: a number or a 0-d array on any device.
            weight: how often it counts; the batch size, for a mean over examples.
        """
        here = isinstance(value, np.ndarray) or not backend.is_array(value)
        # do not wait for a GPU
        x: Any = float(value) if here else value.astype("d")
        self._x = self._x + weight * x
        self._x2 = self._x2 + weight * x * x
        self._n = self._n + weight

    def sums(self) -> Sums:
        """Σ w x, Σ w x² and Σ w, on the host: what ranks add up to get the statistics of all."""
        return float(self._x), float(self._x2), float(self._n)

    def merge(self, sums: Sums) -> None:
        """Add the sums of another summary."""
        self._x = self._x + sums[0]
        self._x2 = self._x2 + sums[1]
        self._n = self._n + sums[2]

    def compute_mean(self) -> float:
        """Return the mean; NaN if there were no values."""
        return self.make_statistics()[0]

    def make_statistics(self) -> tuple[float, float]:
        """Return the mean and the standard deviation (of the values as they are: divided by their
        number).
        """
        x, x2, n = self.sums()
        if not n:
            return math.nan, math.nan
        mean = x / n
        variance = x2 / n - mean * mean
        return mean, math.sqrt(variance) if variance > 0 else 0.0 * variance  # NaN stays NaN

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the sums; a whole number of values as one, which Chainer wants."""
        x, x2, n = self.sums()
        whole = n.is_integer() and not isinstance(serializer, Deserializer)
        self._x = float(serializer("_x", x))
        self._x2 = float(serializer("_x2", x2))
        self._n = float(serializer("_n", int(n) if whole else n))


class DictSummary:
    """A :class:`Summary` for each scalar of dicts.

    Example:
        >>> import mnpar
        >>> summary = mnpar.DictSummary()
        >>> summary.add({"loss": 1.0, "note": "not a number"})
        >>> summary.add({"loss": (4.0, 2)})
        >>> summary.compute_mean()
        {'loss': 3.0}
    """

    def __init__(self) -> None:
        self._summaries: dict[str, Summary] = {}

    def add(self, d: Mapping[str, Reported | tuple[Reported, float]], weight: Any = 1) -> None:
        """Add the scalars of a dict; the rest is left out.

        Args:
            d: numbers, 0-d arrays or Variables by name, or pairs of these and their weights.
            weight: of those that come without one.

        Raises:
            ValueError: a weight is not a scalar.
        """
        for name, value in d.items():
            value, w = value if isinstance(value, tuple) and len(value) == 2 else (value, weight)
            value = value.array if isinstance(value, Variable) else value
            w = w.array if isinstance(w, Variable) else w
            if not _is_scalar(w):
                raise ValueError(f"the weight of {name} is not a number but {w!r}")
            if _is_scalar(value):
                self._summaries.setdefault(name, Summary()).add(value, w)

    def sums(self) -> dict[str, Sums]:
        """Return the sums of each name, see :meth:`Summary.sums`."""
        return {name: summary.sums() for name, summary in self._summaries.items()}

    def merge(self, ranks: Iterable[Mapping[str, Sums]]) -> None:
        """Add the sums of other summaries: the union of their names, in order of first
        occurrence.
        """
        for sums in ranks:
            for name, values in sums.items():
                self._summaries.setdefault(name, Summary()).merge(values)

    def compute_mean(self) -> dict[str, float]:
        """Return the means by name."""
        return {name: summary.compute_mean() for name, summary in self._summaries.items()}

    def make_statistics(self) -> dict[str, float]:
        """Return the means by name, and the standard deviations by ``name.std``."""
        statistics = {}
        for name, summary in self._summaries.items():
            statistics[name], statistics[f"{name}.std"] = summary.make_statistics()
        return statistics

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load the sums; the names are saved as one text, in Chainer's keys. A summary that
        was not saved is empty.
        """
        try:
            names = serializer("_names", json.dumps(list(self._summaries)))
        except KeyError:
            names = "[]"
        if isinstance(serializer, Deserializer):
            self._summaries = {name: Summary() for name in json.loads(str(names) or "[]")}
        for i, summary in enumerate(self._summaries.values()):
            summary.serialize(serializer["_summaries"][str(i)])


def _is_scalar(x: object) -> bool:
    if isinstance(x, int | float):
        return True
    if not (backend.is_array(x) or isinstance(x, np.generic)):
        return False
    # bfloat16 is a V
    number = x.dtype.kind in "biuf" or (x.dtype.kind == "V" and np.can_cast(x.dtype, np.float64))
    return bool(x.ndim == 0 and number)
