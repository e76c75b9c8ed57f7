"""Chainer's place of get_trigger; it stands with the triggers that it makes."""

from mnpar.training.triggers.interval import IntervalTrigger, get_trigger

__all__ = ["IntervalTrigger", "get_trigger"]
