"""Connectionist temporal classification (CTC): the probability of a sequence of labels that are not
aligned to the steps.

A path assigns a label or the blank to each step; without repetitions and then without blanks it is
the sequence of labels. kernels/ctc.py sums over all paths.
"""

from __future__ import annotations

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.activation.softmax import log_softmax
from mnpar.functions.array.get_item import get_item, where
from mnpar.functions.array.joining import concat, stack
from mnpar.functions.array.shape import cast
from mnpar.functions.math.average import mean
from mnpar.functions.math.reduction import logsumexp
from mnpar.functions.node import (
    GenericFunction,
    array_of,
    check_option,
    composed_gradient,
    show_shapes,
)
from mnpar.kernels import softmax as kernels
from mnpar.kernels.ctc import NEVER, States, sum_paths, sum_paths_gradient
from mnpar.kernels.dtypes import upcast_halves
from mnpar.variable import Variable, as_variable


class CTC(GenericFunction):
    """Scores (T, N, C) → minus the logarithm of the probability of each sample's labels (N,)."""

    def __init__(self, states: States) -> None:
        self.states = states

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp = backend.get_array_module(x)
        self.log_y = kernels.log_softmax(upcast_halves(x), 2)
        self.alpha, self.log_p = sum_paths(self.log_y, self.states)
        return xp.where(self.log_p < NEVER / 2, np.inf, -self.log_p).astype(x.dtype, copy=False)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        if isinstance(x, Variable):
            return lambda: composed_gradient(lambda x: _composed(x, self.states), x, gy)
        return lambda: self._vjp(x, array_of(gy))

    def _vjp(self, x: Array, gy: Array) -> Array:
        found = sum_paths_gradient(self.log_y, self.states, self.alpha, self.log_p, gy)
        return found.astype(x.dtype, copy=False)


def _composed(x: Variable, states: States) -> Variable:
    xp = x.xp
    T = len(x)
    dtype = x.dtype
    picked = get_item(
        log_softmax(cast(x, "f4") if dtype.char == "e" else x, axis=2), states.index(T)
    )
    never = xp.full((len(states.path), 2), NEVER, picked.dtype)
    alpha = where(states.first(), picked[0], NEVER)
    for t in range(1, T):
        later = concat((never, alpha), axis=1)  # (N, S + 2)
        from_two = where(states.skip, later[:, :-2], NEVER)
        from_one = later[:, 1:-1]
        more = logsumexp(stack((alpha, from_one, from_two), axis=0), axis=0) + picked[t]
        alpha = where((t < states.steps)[:, None], more, alpha)
    loss: Variable = -logsumexp(where(states.last(), alpha, NEVER), axis=1)
    return cast(where(loss.array > -NEVER / 2, np.inf, loss), dtype)


def connectionist_temporal_classification(
    x: Variable | Array,
    t: Variable | Array,
    blank_symbol: int,
    input_length: Variable | Array | None = None,
    label_length: Variable | Array | None = None,
    reduce: str = "mean",
) -> Variable:
    """The CTC loss: minus the logarithm of the probability of a sequence of labels, in any
    alignment to the steps.

    Args:
        x: T scores ``(N, C)``, one for each step, before softmax; or one ``(T, N, C)``.
        t: ``(N, L)``, integers: the labels.
        blank_symbol: the class that stands for no label.
        input_length: ``(N,)``, how many steps count; None: all.
        label_length: ``(N,)``, how many labels count; None: all.
        reduce: ``'mean'`` over N, or ``'no'``.

    Returns:
        0-d (0 for no samples), or ``(N,)``; infinite, with no gradient, for labels that do not fit
        into the steps.

    Raises:
        ValueError: wrong shapes, lengths or symbols, or an unknown ``reduce``; TypeError: scores of
            integers.

    Example:
        >>> import numpy as np, mnpar.functions as F
        >>> x = np.zeros((2, 1, 2))  # two steps, two symbols, each as likely
        >>> F.connectionist_temporal_classification(x, np.array([[1]]), 0).item()  # 11, 01, 10
        0.2876820724517809

    Source:
        Graves et al., "Connectionist temporal classification", ICML 2006.
    """
    name = "connectionist_temporal_classification"
    check_option(name, "reduce", reduce, "mean", "no")
    x = (
        stack([as_variable(step) for step in x], axis=0)
        if isinstance(x, tuple | list)
        else as_variable(x)
    )
    labels = as_variable(t).array
    backend.require_float_dtype(name, x.array)
    if (
        x.ndim != 3
        or not len(x)
        or labels.ndim != 2
        or len(labels) != x.shape[1]
        or labels.dtype.kind not in "iu"
    ):
        raise ValueError(
            f"{name}: shapes {show_shapes((x.shape, labels.shape))} are not (T, N, C), T > 0, and "
            "integers (N, L)"
        )
    T, N, C = x.shape
    steps = _lengths(name, "input_length", input_length, x.xp, N, 1, T)
    counts = _lengths(name, "label_length", label_length, x.xp, N, 0, labels.shape[1])
    counted = labels if label_length is None else _counted(x.xp, labels, counts)
    if not 0 <= blank_symbol < C or (
        (counted.size and not 0 <= int(counted.min()) <= int(counted.max()) < C)
        or bool((counted == blank_symbol).any())
    ):
        raise ValueError(
            f"{name}: blank_symbol = {blank_symbol} and the labels that count are different "
            f"numbers from 0 to {C - 1}"
        )
    y = CTC(States(labels, blank_symbol, steps, counts)).apply((x,))[0]
    return y if reduce == "no" else mean(y)


def _lengths(
    name: str,
    what: str,
    lengths: Variable | Array | None,
    xp: ArrayModule,
    N: int,
    low: int,
    high: int,
) -> Array:
    if lengths is None:
        return xp.full(N, high)
    counts = xp.asarray(array_of(lengths))
    if counts.shape != (N,) or (N and not low <= int(counts.min()) <= int(counts.max()) <= high):
        raise ValueError(f"{name}: {what} = {counts} is not {N} numbers from {low} to {high}")
    return counts


def _counted(xp: ArrayModule, labels: Array, counts: Array) -> Array:
    """The labels that count, one after the other."""
    found: Array = labels[xp.arange(labels.shape[1]) < counts[:, None]]
    return found
