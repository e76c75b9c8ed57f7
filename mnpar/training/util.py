"""Chainer's other place of get_trigger."""

from mnpar.training.triggers.interval import get_trigger as get_trigger
