"""The forward-backward algorithm of connectionist temporal classification: sums over all alignments
of labels to steps, in logarithms.

The paths of L labels go through the S = 2 L + 1 states blank, label, blank, …, blank: at each step
they stay, or go on by one state or (between different labels) by two. α sums over the paths up to a
state, β over those from it on; α + β gives the probability of each state at each step. The twins
compute a step of all samples at once, in some twenty passes; the loops a sample at a time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, ArrayModule
from mnpar.kernels.compiler import Cube, Integers, Matrix, Vector, compiled, formula, suits
from mnpar.kernels.dtypes import upcast_halves
from mnpar.kernels.scalar import exp, log

NEVER = -1e30  # the logarithm of 0, with which one can calculate


@dataclass(frozen=True)
class States:
    """The states of each sample's labels.

    Args:
        labels: (N, L), integers.
        blank: the symbol that stands for no label.
        steps: (N,), how many steps count.
        counts: (N,), how many labels count.
    """

    labels: Array
    blank: int
    steps: Array
    counts: Array

    @functools.cached_property
    def path(self) -> Array:
        """(N, S): the symbol of each state."""
        xp = backend.get_array_module(self.labels)
        N, L = self.labels.shape
        used = xp.arange(L) < self.counts[:, None]
        path = xp.full((N, 2 * L + 1), self.blank, "i8")
        path[:, 1::2] = xp.where(used, self.labels, self.blank)
        return path

    @functools.cached_property
    def skip(self) -> Array:
        """(N, S): whether the state can be reached from two before."""
        path = self.path
        skip = backend.get_array_module(path).zeros(path.shape, bool)
        skip[:, 2:] = (path[:, 2:] != self.blank) & (path[:, 2:] != path[:, :-2])
        return skip

    def first(self) -> Array:
        """(N, S): where a path may begin."""
        S = backend.get_array_module(self.path).arange(self.path.shape[1])
        return (S < 2) & (2 * self.counts[:, None] >= S)

    def last(self) -> Array:
        """(N, S): where a path may end."""
        S = backend.get_array_module(self.path).arange(self.path.shape[1])
        return (2 * self.counts[:, None] >= S) & (2 * self.counts[:, None] - 1 <= S)

    def index(self, T: int) -> tuple[Array, Array, Array]:
        """Return what picks each state's symbol out of (T, N, C)."""
        xp = backend.get_array_module(self.path)
        return xp.arange(T)[:, None, None], xp.arange(len(self.path))[:, None], self.path

    def for_loops(self) -> tuple[Any, ...]:
        """Return them as the loops read them."""
        numbers = (self.labels, self.steps, self.counts)
        labels, steps, counts = [np.array(z, np.int64).reshape(-1) for z in numbers]
        return labels, steps, counts, int(self.blank)


@formula
def _log_sum(a: Any, b: Any, c: Any) -> Any:
    """log(eᵃ + eᵇ + eᶜ); NaN if one is NaN."""
    top = b if b > a else a
    top = c if c > top else top
    return top + log(exp(a - top) + exp(b - top) + exp(c - top))


def _log_sums(xp: ArrayModule, a: Array, b: Array, c: Array) -> Array:
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


@formula
def _find_path(labels: Any, n: Any, count: Any, blank: Any, path: Any, skip: Any) -> Any:
    """The symbol of each state of a sample, and 0 or NEVER, to be added to what comes from two
    states before; two more states come from nowhere.
    """
    L = path.size // 2
    for s in range(path.size):
        path[s] = labels[n * L + s // 2] if s % 2 == 1 and s // 2 < count else blank
    for s in range(skip.size):
        reached = 2 <= s < path.size and path[s] != blank and path[s] != path[s - 2]
        skip[s] = 0.0 if reached else NEVER


@compiled
def _sum_up(
    log_y: Cube,
    labels: Integers,
    steps: Integers,
    counts: Integers,
    blank: int,
    path: Integers,
    room: Matrix,
    alpha: Cube,
    log_p: Vector,
) -> None:
    T, N = log_y.shape[:2]
    S = path.size
    skip = room[0]
    picked = room[1]
    for n in range(N):
        count = counts[n]
        _find_path(labels, n, count, blank, path, skip)
        for s in range(S + 2):
            begins = 2 <= s < 4 and s - 2 <= 2 * count
            alpha[0, n, s] = log_y[0, n, path[s - 2]] if begins else NEVER
        for t in range(1, T):
            old = alpha[t - 1, n]
            new = alpha[t, n]
            new[0] = NEVER
            new[1] = NEVER
            if t >= steps[n]:
                for s in range(S):
                    new[s + 2] = old[s + 2]
                continue
            for s in range(S):
                picked[s] = log_y[t, n, path[s]]
            for s in range(S):
                new[s + 2] = _log_sum(old[s + 2], old[s + 1], old[s] + skip[s]) + picked[s]
        at = 2 * count + 2
        last = alpha[T - 1, n, at]
        log_p[n] = _log_sum(last, alpha[T - 1, n, at - 1] if count else NEVER, NEVER)


def sum_paths(log_y: Array, states: States) -> tuple[Array, Array]:
    """Return α (T, N, S + 2), in which two states stand before the first, and the logarithm of the
    probability of the labels (N,); that of labels without a path is below NEVER / 2.

    Args:
        log_y: (T, N, C), the logarithm of each symbol's probability at each step.
        states: of the labels.
    """
    T, N = log_y.shape[:2]
    xp = backend.get_array_module(log_y)
    alpha = xp.empty((T, N, 2 * states.labels.shape[1] + 3), log_y.dtype)
    if suits(log_y):
        log_p = np.empty(N, log_y.dtype)
        room, path = _rooms(alpha)
        _sum_up(log_y, *states.for_loops(), path, room, alpha, log_p)
        return alpha, log_p
    alpha[...] = NEVER
    picked = log_y[states.index(T)]  # (T, N, S)
    never = xp.where(states.skip, 0, NEVER).astype(picked.dtype)
    shortest = int(states.steps.min()) if N else 0
    alpha[0, :, 2:] = xp.where(states.first(), picked[0], NEVER)
    for t in range(1, T):
        old = alpha[t - 1]
        new = alpha[t, :, 2:]
        xp.add(_log_sums(xp, old[:, 2:], old[:, 1:-1], old[:, :-2] + never), picked[t], out=new)
        if t >= shortest:
            new[...] = xp.where((t < states.steps)[:, None], new, old[:, 2:])
    ends = xp.where(states.last(), alpha[-1, :, 2:], NEVER)
    top = ends.max(axis=1, keepdims=True)
    return alpha, (top + xp.log(xp.exp(ends - top).sum(axis=1, keepdims=True)))[:, 0]


def _rooms(alpha: Array) -> tuple[Array, Array]:
    """Room for numbers of each state, and for the symbols of a path."""
    S = alpha.shape[2] - 2
    return np.empty((4, S + 2), alpha.dtype), np.empty(S, np.int64)


@compiled
def _spread_back(
    log_y: Cube,
    labels: Integers,
    steps: Integers,
    counts: Integers,
    blank: int,
    path: Integers,
    room: Matrix,
    alpha: Cube,
    log_p: Vector,
    g: Vector,
    gx: Cube,
) -> None:
    T, N, C = log_y.shape
    S = path.size
    skip = room[0]
    share = room[1]
    beta = room[2]
    ahead = room[3]
    for n in range(N):
        count = counts[n]
        _find_path(labels, n, count, blank, path, skip)
        for s in range(S):
            beta[s] = 0.0 if 2 * count - 1 <= s <= 2 * count else NEVER
        ahead[S] = NEVER
        ahead[S + 1] = NEVER
        has_path = log_p[n] > NEVER / 2.0
        for t in range(T - 1, -1, -1):
            if t + 1 < steps[n]:
                for s in range(S):
                    ahead[s] = beta[s] + log_y[t + 1, n, path[s]]
                for s in range(S):
                    beta[s] = _log_sum(ahead[s], ahead[s + 1], ahead[s + 2] + skip[s + 2])
            for s in range(S):
                v = alpha[t, n, s + 2] - log_p[n] + beta[s]
                share[s] = exp(0.0 if v > 0.0 else v)
            for c in range(C):
                gx[t, n, c] = exp(log_y[t, n, c])
            for s in range(S):
                gx[t, n, path[s]] -= share[s]
            weight = g[n] * (1.0 if has_path and t < steps[n] else 0.0)
            for c in range(C):
                gx[t, n, c] *= weight


def sum_paths_gradient(log_y: Array, states: States, alpha: Array, log_p: Array, g: Array) -> Array:
    """Return the gradient of scores (T, N, C), of which log_y is the log_softmax: g (N,) times each
    symbol's probability minus the one that it has given the labels; 0 for labels without a path.

    Args:
        log_y, states: see :func:`sum_paths`, which returned ``alpha`` and ``log_p``.
    """
    if suits(log_y):
        gx = np.empty_like(log_y)
        room, path = _rooms(alpha)
        given = np.array(g, log_y.dtype)
        _spread_back(log_y, *states.for_loops(), path, room, alpha, log_p, given, gx)
        return gx
    xp = backend.get_array_module(log_y)
    T = len(log_y)
    share = _shares(xp, log_y, states, alpha, log_p)
    gx = xp.exp(log_y)
    steps = xp.arange(T)[:, None]
    rows = xp.arange(len(states.path))
    # the symbols of one state differ in their samples, so nothing is added twice
    for s in range(share.shape[2]):
        gx[steps, rows, states.path[:, s]] -= share[:, :, s]
    counts = (steps < states.steps) & (log_p > NEVER / 2)  # (T, N)
    found: Array = gx * (counts * upcast_halves(g))[:, :, None]
    return found


def _shares(xp: ArrayModule, log_y: Array, states: States, alpha: Array, log_p: Array) -> Array:
    """(T, N, S): the probability of each state at each step."""
    picked = log_y[states.index(len(log_y))]
    T, N, S = picked.shape
    last = xp.where(states.last(), 0, NEVER).astype(picked.dtype)
    never = xp.full((N, S), NEVER, picked.dtype)  # of leaving a state by two
    never[:, :-2] = xp.where(states.skip[:, 2:], 0, NEVER)
    ahead = xp.full((N, S + 2), NEVER, picked.dtype)  # with two states after the last
    shares, beta = alpha[:, :, 2:] - log_p[:, None], last
    shortest = int(states.steps.min()) if N else 0
    shares[-1] += last
    for t in range(T - 2, -1, -1):
        xp.add(beta, picked[t + 1], out=ahead[:, :S])
        beta = _log_sums(xp, ahead[:, :-2], ahead[:, 1:-1], ahead[:, 2:] + never)
        if t + 1 >= shortest:
            beta = xp.where((t + 1 < states.steps)[:, None], beta, last)
        shares[t] += beta
    xp.minimum(shares, 0, out=shares)
    found: Array = xp.exp(shares, out=shares)
    return found
