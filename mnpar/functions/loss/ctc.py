"""Connectionist temporal classification (CTC): the probability of a sequence of labels that are not
aligned to the steps.

A path assigns a label or the blank to each step; without repetitions and then without blanks it is
the sequence of labels. The paths of L labels go through the 2 L + 1 states blank, label, blank, …,
blank: at each step they stay, or go on by one state or (between different labels) by two. The
forward-backward algorithm sums over all paths, in logarithms: α over the paths up to a state, β
over the paths from it on. α + β gives the probability of each state at each step, and with it the
gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.autograd.tape import Tape
from mnpar.backend import Array, ArrayModule
from mnpar.function_node import InputGradients
from mnpar.functions.activation.softmax import log_softmax
from mnpar.functions.array.get_item import get_item, where
from mnpar.functions.array.joining import concat, stack
from mnpar.functions.array.shape import cast
from mnpar.functions.math.reduction import logsumexp, mean
from mnpar.functions.node import GenericFunction, array_of, check_option, show_shapes
from mnpar.kernels.dtypes import upcast_halves
from mnpar.variable import Variable, as_variable, grad

NEVER = -1e30  # the logarithm of 0, with which one can calculate


@dataclass(frozen=True)
class States:
    """The S = 2 L + 1 states of each sample's labels."""

    path: Array  # (N, S), the symbol of each state
    skip: Array  # (N, S), whether the state can be reached from two before
    steps: Array  # (N,), how many steps count
    ends: Array  # (N,), 2 l: where the path of l labels ends (or one before)
    shortest: int  # the smallest of steps

    def first(self) -> Array:
        """(N, S): where a path may begin."""
        S = backend.get_array_module(self.path).arange(self.path.shape[1])
        return (S < 2) & (self.ends[:, None] >= S)

    def last(self) -> Array:
        """(N, S): where a path may end."""
        S = backend.get_array_module(self.path).arange(self.path.shape[1])
        return (self.ends[:, None] >= S) & (self.ends[:, None] - 1 <= S)

    def index(self, T: int) -> tuple[Array, Array, Array]:
        """Picks each state's symbol out of (T, N, C)."""
        xp = backend.get_array_module(self.path)
        return xp.arange(T)[:, None, None], xp.arange(len(self.path))[:, None], self.path


def _log_sum(xp: ArrayModule, a: Array, b: Array, c: Array) -> Array:
    """log(eᵃ + eᵇ + eᶜ), by fewer and faster passes than ``logaddexp`` makes."""
    top = xp.maximum(a, b)
    xp.maximum(top, c, out=top)
    total = xp.zeros_like(top)
    for x in (a, b, c):
        d = x - top
        total += xp.exp(d, out=d)
    xp.log(total, out=total)
    total += top
    return total


class CTC(GenericFunction):
    """Scores (T, N, C) → minus the logarithm of the probability of each sample's labels (N,)."""

    def __init__(self, states: States) -> None:
        self.states = states

    def forward(self, x: Array) -> Array:
        self.retain_inputs((0,))
        xp = backend.get_array_module(x)
        states = self.states
        z = upcast_halves(x)
        z = z - z.max(axis=2, keepdims=True) if z.size else z
        self.log_y = z - xp.log(xp.exp(z).sum(axis=2, keepdims=True))
        picked = self.log_y[states.index(len(x))]  # (T, N, S)
        T, N, S = picked.shape
        self.alpha = xp.full((T, N, S + 2), NEVER, picked.dtype)  # with two states before the first
        never = xp.where(states.skip, 0, NEVER).astype(picked.dtype)
        self.alpha[0, :, 2:] = xp.where(states.first(), picked[0], NEVER)
        for t in range(1, T):
            old = self.alpha[t - 1]
            new = self.alpha[t, :, 2:]
            xp.add(_log_sum(xp, old[:, 2:], old[:, 1:-1], old[:, :-2] + never), picked[t], out=new)
            if t >= states.shortest:
                new[...] = xp.where((t < states.steps)[:, None], new, old[:, 2:])
        ends = xp.where(states.last(), self.alpha[-1, :, 2:], NEVER)
        top = ends.max(axis=1, keepdims=True)
        self.log_p = (top + xp.log(xp.exp(ends - top).sum(axis=1, keepdims=True)))[:, 0]
        return xp.where(self.log_p < NEVER / 2, np.inf, -self.log_p).astype(x.dtype)

    def backward(self, gy: Variable | Array) -> InputGradients:
        (x,) = self.get_retained_inputs()
        if isinstance(x, Variable):
            return lambda: self._recorded(x, gy)
        return lambda: self._vjp(x, array_of(gy))

    def _vjp(self, x: Array, gy: Array) -> Array:
        """softmax(x) minus the probability of each symbol at each step, given the labels; 0 for
        labels without a path.
        """
        xp = backend.get_array_module(x)
        states = self.states
        T = len(x)
        share = self._shares(xp)
        gx = xp.exp(self.log_y)
        steps = xp.arange(T)[:, None]
        rows = xp.arange(len(states.path))
        # the symbols of one state differ in their samples, so nothing is added twice
        for s in range(share.shape[2]):
            gx[steps, rows, states.path[:, s]] -= share[:, :, s]
        counts = (steps < states.steps) & (self.log_p > NEVER / 2)  # (T, N)
        result: Array = (gx * (counts * upcast_halves(gy))[:, :, None]).astype(x.dtype)
        return result

    def _shares(self, xp: ArrayModule) -> Array:
        """(T, N, S): the probability of each state at each step."""
        states, picked = self.states, self.log_y[self.states.index(len(self.log_y))]
        T, N, S = picked.shape
        last = xp.where(states.last(), 0, NEVER).astype(picked.dtype)
        never = xp.full((N, S), NEVER, picked.dtype)  # of leaving a state by two
        never[:, :-2] = xp.where(states.skip[:, 2:], 0, NEVER)
        ahead = xp.full((N, S + 2), NEVER, picked.dtype)  # with two states after the last
        shares, beta = self.alpha[:, :, 2:] - self.log_p[:, None], last
        shares[-1] += last
        for t in range(T - 2, -1, -1):
            xp.add(beta, picked[t + 1], out=ahead[:, :S])
            beta = _log_sum(xp, ahead[:, :-2], ahead[:, 1:-1], ahead[:, 2:] + never)
            if t + 1 >= states.shortest:
                beta = xp.where((t + 1 < states.steps)[:, None], beta, last)
            shares[t] += beta
        xp.minimum(shares, 0, out=shares)
        return xp.exp(shares, out=shares)

    def _recorded(self, x: Variable, gy: Variable | Array) -> Any:
        """The gradient by differentiable functions of mnpar, step by step: slower, but
        differentiable any number of times.
        """
        with Tape():
            return grad(
                [_composed(x, self.states)], [x], [as_variable(gy)], enable_double_backprop=True
            )[0]


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
    y = CTC(_states(name, x.xp, labels, blank_symbol, steps, counts, C)).apply((x,))[0]
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
    counts = xp.full(N, high) if lengths is None else xp.asarray(array_of(lengths))
    if counts.shape != (N,) or (N and not low <= int(counts.min()) <= int(counts.max()) <= high):
        raise ValueError(f"{name}: {what} = {counts} is not {N} numbers from {low} to {high}")
    return counts


def _states(
    name: str, xp: ArrayModule, labels: Array, blank: int, steps: Array, counts: Array, C: int
) -> States:
    N, L = labels.shape
    used = xp.arange(L) < counts[:, None]
    if not 0 <= blank < C or bool(
        (used & ((labels < 0) | (labels >= C) | (labels == blank))).any()
    ):
        raise ValueError(
            f"{name}: blank_symbol = {blank} and the labels that count are different numbers "
            f"from 0 to {C - 1}"
        )
    path = xp.full((N, 2 * L + 1), blank, "i8")
    path[:, 1::2] = xp.where(used, labels, blank)
    skip = xp.zeros(path.shape, bool)
    skip[:, 2:] = (path[:, 2:] != blank) & (path[:, 2:] != path[:, :-2])
    return States(path, skip, steps, 2 * counts, int(steps.min()) if N else 0)
