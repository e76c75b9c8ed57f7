"""Partition of a model's layers into stages: consecutive layers, such that the slowest stage, which
sets the pace, is as fast as possible.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mnpar.autograd.tape import Tape
from mnpar.backend import Array
from mnpar.variable import Variable, backward


def balance(costs: Sequence[float], stages: int) -> list[int]:
    """Return how many layers each stage gets.

    Args:
        costs: of each layer, in order, as :func:`measure` returns them.
        stages: how many to make.

    Returns:
        The number of consecutive layers of each stage: the stage that costs most costs as little as
        possible, and the first stages take more layers where that costs nothing.

    Raises:
        ValueError: there is no stage to be made.

    Example:
        >>> balance([3.0, 1.0, 1.0, 1.0], stages=2)
        [1, 3]
    """
    if stages < 1:
        raise ValueError(f"layers are given to 1 stage or more, not to {stages}")
    ends = [0.0, *itertools.accumulate(costs)]
    N = len(costs)
    best = [ends[:]]  # best[s][n]: the highest cost of s + 1 stages that share the first n layers
    for _ in range(1, stages):
        best.append(
            [min(max(best[-1][k], ends[n] - ends[k]) for k in range(n + 1)) for n in range(N + 1)]
        )
    limit = best[-1][N] * (1 + 1e-12)
    counts, start = [], 0
    # first as many as fit, but none without a layer while there are any
    for stage in range(stages):
        left = stages - stage - 1
        end = start
        while end < N and ends[end + 1] - ends[start] <= limit and (end == start or N - end > left):
            end += 1
        counts.append(end - start)
        start = end
    return counts


def measure(layers: Sequence[Callable[..., Any]], *xs: Array, times: int = 5) -> list[float]:
    """Return the seconds that forward and backward of each layer take on this rank: the costs that
    :func:`balance` takes.

    The layers' parameters lose their gradients.

    Args:
        layers: each is called with what the one before returned; the first with ``xs``.
        xs: a micro-batch.
        times: how often to measure; the median counts.

    Example:
        >>> import numpy as np, mnpar.functions as F, mnpar.links as L
        >>> layers = [L.Linear(8, 100), F.relu, L.Linear(100, 100), L.Linear(100, 2)]
        >>> costs = measure(layers, np.ones((4, 8), "f4"))
        >>> sum(balance(costs, 2))
        4
    """
    costs: list[float] = []
    inputs: tuple[Any, ...] = xs
    for layer in layers:
        seconds = []
        for _ in range(times + 1):  # the first is to warm up
            variables = tuple([Variable(x) for x in inputs])
            begin = time.perf_counter()
            with Tape():
                ys = layer(*variables)
                ys = ys if isinstance(ys, tuple) else (ys,)
                backward(ys, [Variable(y.xp.ones_like(y.array)) for y in ys])
            seconds.append(time.perf_counter() - begin)
        costs.append(float(np.median(seconds[1:])))
        inputs = tuple([y.array for y in ys])
        if hasattr(layer, "cleargrads"):
            layer.cleargrads()
    return costs
