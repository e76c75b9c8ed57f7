"""Meters: means, counts, error rates and times, of one rank or of all ranks.

``add`` adds values, ``value()`` returns the result, ``reset()`` starts anew. ``sync(comm)``, called
by all ranks, combines their meters: each rank's meter then has the value of one that was given the
values of all ranks. Reset a meter after ``sync`` if it is used again: values that are combined
twice count twice. The meters and their numbers are flashlight's.
"""

from typing import TYPE_CHECKING

from mnpar import lazy

if TYPE_CHECKING:
    from mnpar.meters.average import Average as Average, AverageValueMeter as AverageValueMeter
    from mnpar.meters.comparison import (
        CountMeter as CountMeter,
        EditDistanceMeter as EditDistanceMeter,
        Edits as Edits,
        FrameErrorMeter as FrameErrorMeter,
        MSEMeter as MSEMeter,
        TopKMeter as TopKMeter,
    )
    from mnpar.meters.meter import sync as sync
    from mnpar.meters.stopwatch import TimeMeter as TimeMeter
else:
    __getattr__, __dir__, __all__ = lazy.names(__name__)
