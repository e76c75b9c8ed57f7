"""Function hooks, under Chainer's names: what runs before and after functions."""

from mnpar.function_hooks.printing import PrintHook
from mnpar.function_hooks.timer import TimerHook

__all__ = ["PrintHook", "TimerHook"]
