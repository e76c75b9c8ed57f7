"""Times by name, and how they are printed: what the two TimerHooks share."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

UNITS = {"sec": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


class Timings:
    """Seconds that named things took, in the order in which they ended.

    Example:
        >>> timings = Timings()
        >>> timings.call_history += [("f", 0.25), ("g", 0.5), ("f", 0.5)]
        >>> timings.total_time(), timings.summary()["f"]
        (1.25, {'total_time': 0.75, 'occurrence': 2})
        >>> timings.print_report(unit="ms")
        FunctionName  ElapsedTime  Occurrence
                   f     750.00ms           2
                   g     500.00ms           1
    """

    table_sep = "  "

    def __init__(self) -> None:
        self.call_history: list[tuple[str, float]] = []
        self._begun: dict[Any, float] = {}

    def _begin(self, key: Any) -> None:
        self._begun[key] = time.perf_counter()

    def _end(self, key: Any, name: str) -> None:
        if key in self._begun:  # it may have been added in between
            self.call_history.append((name, time.perf_counter() - self._begun.pop(key)))

    def total_time(self) -> float:
        """The seconds of all of them together."""
        return sum(seconds for _, seconds in self.call_history)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Of each name, the seconds (``'total_time'``) and how often it was called (``'occurrence'``)."""
        table: dict[str, dict[str, Any]] = {}
        for name, seconds in self.call_history:
            row = table.setdefault(name, {"total_time": 0.0, "occurrence": 0})
            row["total_time"] += seconds
            row["occurrence"] += 1
        return table

    def print_report(self, unit: str = "auto", file: TextIO | None = None) -> None:
        """Print a table of it.

        Args:
            unit: ``'sec'``, ``'ms'``, ``'us'``, ``'ns'``; ``'auto'`` chooses for each row, ``'auto_foreach'`` is the same.
            file: where to; None: standard output.

        Raises:
            ValueError: there is no such unit.
        """
        if unit not in (*UNITS, "auto", "auto_foreach"):
            raise ValueError(f"print_report: a unit is one of {', '.join(UNITS)}, auto, not {unit!r}")
        rows = [("FunctionName", "ElapsedTime", "Occurrence")]
        for name, entry in self.summary().items():
            rows.append((name, _text(entry["total_time"], unit), str(entry["occurrence"])))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        for row in rows:
            line = self.table_sep.join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            print(line, file=sys.stdout if file is None else file)


def _text(seconds: float, unit: str) -> str:
    if unit.startswith("auto"):
        unit = next((name for name, factor in UNITS.items() if seconds * factor >= 1), "ns")
    return f"{seconds * UNITS[unit]:.2f}{unit}"
