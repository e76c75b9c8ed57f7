"""A hook that measures how long functions take, forward and backward."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from mnpar import backend
from mnpar.backend import Array
from mnpar.function_hook import FunctionHook
from mnpar.function_node import FunctionNode

UNITS = {"sec": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


class Timings:
    """Seconds that named things took, in the order in which they ended.

    Example:
        >>> timings = Timings()
        >>> timings.call_history += [("f", 0.25), ("g", 0.5), ("f", 0.5)]
        >>> timings.summary()["f"]
        {'elapsed_time': 0.75, 'occurrence': 2}
        >>> timings.print_report(unit="ms")
        FunctionName  ElapsedTime  Occurrence
                   f     750.00ms           2
                   g     500.00ms           1
    """

    title = "FunctionName"

    def __init__(self) -> None:
        self.call_history: list[tuple[str, float]] = []
        self._begun: dict[Any, float] = {}
        self._total = 0.0

    def _begin(self, key: Any) -> None:
        self._begun[key] = time.perf_counter()

    def _end(self, key: Any, name: str) -> None:
        if key in self._begun:  # else the hook was added after this call had begun
            seconds = time.perf_counter() - self._begun.pop(key)
            self.call_history.append((name, seconds))
            self._total += 0 if self._begun else seconds

    def _drop(self, key: Any) -> None:
        self._begun.pop(key, None)

    def total_time(self) -> float:
        """Return the seconds of all calls together; a call inside another one is counted once."""
        return self._total

    def summary(self) -> dict[str, dict[str, Any]]:
        """For each name the seconds (``'elapsed_time'``) and how often it was called
        (``'occurrence'``).
        """
        table: dict[str, dict[str, Any]] = {}
        for name, seconds in self.call_history:
            row = table.setdefault(name, {"elapsed_time": 0.0, "occurrence": 0})
            row["elapsed_time"] += seconds
            row["occurrence"] += 1
        return table

    def print_report(self, unit: str = "auto", file: TextIO | None = None) -> None:
        """Print a table of :meth:`summary`.

        Args:
            unit: ``'sec'``, ``'ms'``, ``'us'``, ``'ns'``; ``'auto'`` chooses by the largest time,
                ``'auto_foreach'`` by row.
            file: where to; None: standard output.

        Raises:
            ValueError: there is no such unit.
        """
        if unit not in (*UNITS, "auto", "auto_foreach"):
            raise ValueError(
                f"print_report: a unit is one of {', '.join(UNITS)}, auto, auto_foreach, not "
                f"{unit!r}"
            )
        rows = [(self.title, "ElapsedTime", "Occurrence")]
        summary = self.summary()
        if unit == "auto":
            unit = _suiting(max([entry["elapsed_time"] for entry in summary.values()], default=1.0))
        for name, entry in summary.items():
            seconds = entry["elapsed_time"]
            own = _suiting(seconds) if unit == "auto_foreach" else unit
            rows.append((name, f"{seconds * UNITS[own]:.2f}{own}", str(entry["occurrence"])))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        for row in rows:
            line = "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            print(line, file=sys.stdout if file is None else file, flush=True)


class TimerHook(Timings, FunctionHook):
    """Measures each forward and each backward of functions; on GPUs it synchronizes before and
    after each of them.

    ``call_history`` is a list of pairs (name of the function's class, seconds); :meth:`total_time`,
    :meth:`summary` and :meth:`print_report` add them up. The time of a communication includes
    waiting for its peers.

    Example:
        >>> import numpy as np, mnpar
        >>> x = mnpar.Variable(np.ones(2))
        >>> with mnpar.function_hooks.TimerHook() as timer:
        ...     y = (x * x + 1).sum()
        ...     y.backward()
        >>> [(name, row["occurrence"]) for name, row in timer.summary().items()]
        [('Mul', 2), ('AddConstant', 2), ('Sum', 2)]
    """

    name = "TimerHook"

    def deleted(self, function: FunctionNode) -> None:
        self._begun.clear()  # of functions that raised

    def forward_preprocess(self, function: FunctionNode, in_data: tuple[Array | None, ...]) -> None:
        backend.synchronize(*in_data)
        self._begin((id(function), "forward"))

    def forward_postprocess(
        self, function: FunctionNode, in_data: tuple[Array | None, ...]
    ) -> None:
        backend.synchronize(*in_data)
        self._end((id(function), "forward"), type(function).__name__)

    def backward_preprocess(
        self,
        function: FunctionNode,
        in_data: tuple[Array | None, ...],
        out_grad: tuple[Array | None, ...],
    ) -> None:
        backend.synchronize(*in_data, *out_grad)
        self._begin((id(function), "backward"))

    def backward_postprocess(
        self,
        function: FunctionNode,
        in_data: tuple[Array | None, ...],
        out_grad: tuple[Array | None, ...],
    ) -> None:
        backend.synchronize(*in_data, *out_grad)
        self._end((id(function), "backward"), type(function).__name__)


def _suiting(seconds: float) -> str:
    return next((name for name, factor in UNITS.items() if seconds * factor >= 1), "ns")
