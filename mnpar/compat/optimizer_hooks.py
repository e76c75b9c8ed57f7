"""Chainer's ``optimizer_hooks`` module: functions that an optimizer calls before each update."""
