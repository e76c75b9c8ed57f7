"""A hook that measures how long functions take, forward and backward."""

from __future__ import annotations

from typing import Any

from mnpar import backend
from mnpar.function_hook import FunctionHook
from mnpar.timing import Timings


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

    def deleted(self, function: Any) -> None:
        self._begun.clear()  # of functions that raised

    def forward_preprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        backend.synchronize(*in_data)
        self._begin((id(function), "forward"))

    def forward_postprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        backend.synchronize(*in_data)
        self._end((id(function), "forward"), type(function).__name__)

    def backward_preprocess(
        self, function: Any, in_data: tuple[Any, ...], out_grad: tuple[Any, ...]
    ) -> None:
        backend.synchronize(*in_data, *out_grad)
        self._begin((id(function), "backward"))

    def backward_postprocess(
        self, function: Any, in_data: tuple[Any, ...], out_grad: tuple[Any, ...]
    ) -> None:
        backend.synchronize(*in_data, *out_grad)
        self._end((id(function), "backward"), type(function).__name__)
