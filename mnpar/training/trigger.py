"""Chainer's place of get_trigger; it stands with the triggers that it makes."""

from mnpar.training.triggers.interval import (
    IntervalTrigger as IntervalTrigger,
    get_trigger as get_trigger,
)
