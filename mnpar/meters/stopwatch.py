"""A meter of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mnpar.meters.meter import gather_states

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


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
        """Set the seconds and units."""
        self._seconds, self._units = seconds, units

    def resume(self) -> None:
        """Start the watch, unless it runs."""
        self._since = self._clock() if self._since is None else self._since

    def stop(self) -> None:
        """Stop the watch, if it runs."""
        if self._since is not None:
            self._seconds, self._since = self._seconds + self._clock() - self._since, None

    def stop_and_inc_unit(self, units: int = 1) -> None:
        """:meth:`stop`, then :meth:`inc_unit`."""
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
        seconds, units = np.mean(
            gather_states(self, np.array([self._seconds, self._units]), comm), axis=0
        )
        self.set(float(seconds), float(units))
