"""Steps of optimizers: from a parameter, its gradient and the rule's state, number by number, to
the parameter and the state after the step, in place.

``@update(twin)`` makes a step of a formula for one number, as ``@fused`` does for functions: it is
compiled into a loop that reads and writes each array once. The twin computes the same in numpy's
operations, block by block, to the last bit: a parameter does not depend on which of both runs. So a
formula's operations come in its twin's order. The rules in ``optimizers/`` say what the letters
mean.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels.blocks import blend, blocks, widened
from mnpar.kernels.compiler import Formula, Loop, Reals, Vector, suits
from mnpar.kernels.side_by_side import run_loop, threads_for

_formula: Any = None  # stands for the formula in the loops below


def _of_none(
    p: Vector,
    g: Vector,
    numbers: Reals,
    thread: int,
    begin: int,
    end: int,
) -> None:
    q, h = p[begin:end], g[begin:end]
    for i in range(q.size):
        q[i] = _formula(q[i], h[i], *numbers)


def _of_one(
    p: Vector,
    g: Vector,
    s: Vector,
    numbers: Reals,
    thread: int,
    begin: int,
    end: int,
) -> None:
    q, h, a = p[begin:end], g[begin:end], s[begin:end]
    for i in range(q.size):
        q[i], a[i] = _formula(q[i], h[i], a[i], *numbers)


def _of_two(
    p: Vector,
    g: Vector,
    s: Vector,
    t: Vector,
    numbers: Reals,
    thread: int,
    begin: int,
    end: int,
) -> None:
    q, h, a, b = p[begin:end], g[begin:end], s[begin:end], t[begin:end]
    for i in range(q.size):
        q[i], a[i], b[i] = _formula(q[i], h[i], a[i], b[i], *numbers)


def _of_three(
    p: Vector,
    g: Vector,
    s: Vector,
    t: Vector,
    u: Vector,
    numbers: Reals,
    thread: int,
    begin: int,
    end: int,
) -> None:
    q, h, a, b, c = p[begin:end], g[begin:end], s[begin:end], t[begin:end], u[begin:end]
    for i in range(q.size):
        q[i], a[i], b[i], c[i] = _formula(q[i], h[i], a[i], b[i], c[i], *numbers)


_LOOPS: list[Any] = [_of_none, _of_one, _of_two, _of_three]


class Update:
    """A step: called with the arrays of parameter, gradient and states, and then the numbers that
    all elements share.

    Args:
        compute: the formula, from elements of the arrays, and the numbers, to the parameter and the
            states after the step.
        twin: the same for arrays of numpy or CuPy, in place.
        states: how many there are.
    """

    def __init__(self, compute: Callable[..., Any], twin: Callable[..., None], states: int) -> None:
        self.arrays = 2 + states
        self.twin = twin
        self.loop = Loop(
            _LOOPS[states],
            name=f"{compute.__module__.rpartition('.')[2]}.{compute.__name__}",
            constants={"_formula": Formula(compute, as_numpy=True)},  # type: ignore[arg-type]
            reals=len(inspect.signature(compute).parameters) - self.arrays,
            as_numpy=True,
            entry="parts",
        )
        functools.update_wrapper(self, compute)

    def __call__(self, *args: Any) -> None:
        """Take the step, in place."""
        arrays = args[: self.arrays]
        numbers = args[self.arrays :]
        if suits(*arrays):
            size = arrays[0].size
            threads = threads_for(size, size * (2 * self.arrays - 1))
            run_loop(self.loop, size, threads, *arrays, *numbers)
            return
        xp = backend.get_array_module(arrays[0])
        for parts in blocks(*arrays):
            self.twin(xp, *parts, *numbers)


def update(twin: Callable[..., None], states: int = 0) -> Callable[[Callable[..., Any]], Update]:
    """Make a step of a formula for one number.

    Example:
        >>> import numpy as np
        >>> def twin(xp, p, g, rate):
        ...     p -= rate * g
        >>> @update(twin)
        ... def descend(p, g, rate):
        ...     return p - rate * g
        >>> p = np.array([1.0, 2.0])
        >>> descend(p, np.array([10.0, 20.0]), 0.1)
        >>> p
        array([0., 0.])
    """
    return lambda compute: Update(compute, twin, states)


def _sgd(xp: Any, p: Array, g: Array, lr: float) -> None:
    p -= lr * g


@update(_sgd)
def sgd(p: Any, g: Any, lr: Any) -> Any:
    """p − lr · g"""
    return p - lr * g


def _momentum_sgd(xp: Any, p: Array, g: Array, v: Array, lr: float, momentum: float) -> None:
    v *= momentum
    v -= lr * g
    p += v


@update(_momentum_sgd, states=1)
def momentum_sgd(p: Any, g: Any, v: Any, lr: Any, momentum: Any) -> Any:
    """v ← μ v − lr · g, then p + v"""
    v = momentum * v - lr * g
    return p + v, v


def _corrected_momentum_sgd(
    xp: Any, p: Array, g: Array, v: Array, lr: float, momentum: float
) -> None:
    v *= momentum
    v -= g
    p += lr * v


@update(_corrected_momentum_sgd, states=1)
def corrected_momentum_sgd(p: Any, g: Any, v: Any, lr: Any, momentum: Any) -> Any:
    """v ← μ v − g, then p + lr · v"""
    v = momentum * v - g
    return p + lr * v, v


def _nesterov(xp: Any, p: Array, g: Array, v: Array, lr: float, momentum: float) -> None:
    step = lr * g
    v *= momentum
    v -= step
    p += momentum * v - step


@update(_nesterov, states=1)
def nesterov(p: Any, g: Any, v: Any, lr: Any, momentum: Any) -> Any:
    """v ← μ v − lr · g, then p + μ v − lr · g"""
    step = lr * g
    v = momentum * v - step
    return p + (momentum * v - step), v


def _adagrad(
    xp: Any, p: Array, g: Array, h: Array, lr: float, inside: float, outside: float
) -> None:
    h += g * g
    p -= lr * g / (xp.sqrt(h + inside) if inside else xp.sqrt(h) + outside)


@update(_adagrad, states=1)
def adagrad(p: Any, g: Any, h: Any, lr: Any, inside: Any, outside: Any) -> Any:
    """h ← h + g², then p − lr · g / (√(h + inside) + outside)"""
    h = h + g * g
    return p - lr * g / (math.sqrt(h + inside) + outside), h


def _adadelta(
    xp: Any, p: Array, g: Array, s: Array, x: Array, rho: float, new: float, eps: float
) -> None:
    blend(s, rho, g * g)
    d = xp.sqrt((x + eps) / (s + eps)) * g
    blend(x, rho, d * d)
    p -= d


@update(_adadelta, states=2)
def adadelta(p: Any, g: Any, s: Any, x: Any, rho: Any, new: Any, eps: Any) -> Any:
    """s ← ρ s + (1−ρ) g²,  d = √((x + ε) / (s + ε)) g,  x ← ρ x + (1−ρ) d², then p − d; new: 1−ρ"""
    s = rho * s + new * (g * g)
    d = math.sqrt((x + eps) / (s + eps)) * g
    return p - d, s, rho * x + new * (d * d)


def _rmsprop(
    xp: Any,
    p: Array,
    g: Array,
    s: Array,
    lr: float,
    alpha: float,
    new: float,
    inside: float,
    outside: float,
) -> None:
    blend(s, alpha, g * g)
    p -= lr * g / (xp.sqrt(s + inside) if inside else xp.sqrt(s) + outside)


@update(_rmsprop, states=1)
def rmsprop(
    p: Any, g: Any, s: Any, lr: Any, alpha: Any, new: Any, inside: Any, outside: Any
) -> Any:
    """s ← α s + (1−α) g², then p − lr · g / (√(s + inside) + outside);  new: 1−α"""
    s = alpha * s + new * (g * g)
    return p - lr * g / (math.sqrt(s + inside) + outside), s


def _rmsprop_graves(
    xp: Any,
    p: Array,
    g: Array,
    n: Array,
    m: Array,
    d: Array,
    lr: float,
    alpha: float,
    new: float,
    momentum: float,
    eps: float,
) -> None:
    blend(n, alpha, g * g)
    blend(m, alpha, g)
    d *= momentum
    d -= lr * g / xp.sqrt(n - m * m + eps)
    p += d


@update(_rmsprop_graves, states=3)
def rmsprop_graves(
    p: Any,
    g: Any,
    n: Any,
    m: Any,
    d: Any,
    lr: Any,
    alpha: Any,
    new: Any,
    momentum: Any,
    eps: Any,
) -> Any:
    """n ← α n + (1−α) g²,  m ← α m + (1−α) g,  d ← μ d − lr · g / √(n − m² + ε), then p + d; new:
    1−α
    """
    n = alpha * n + new * (g * g)
    m = alpha * m + new * g
    d = momentum * d - lr * g / math.sqrt(n - m * m + eps)
    return p + d, n, m, d


def _smorms3(
    xp: Any, p: Array, g: Array, k: Array, m: Array, v: Array, lr: float, eps: float
) -> None:
    r = 1 / (k + 1)
    m += r * (g - m)
    v += r * (g * g - v)
    x = m * m / (v + eps)
    p -= g * xp.minimum(lr, x) / (xp.sqrt(v) + eps)
    k *= 1 - x
    k += 1


@update(_smorms3, states=3)
def smorms3(p: Any, g: Any, k: Any, m: Any, v: Any, lr: Any, eps: Any) -> Any:
    """r = 1 / (k + 1),  m ← (1−r) m + r g,  v ← (1−r) v + r g²,  x = m² / (v + ε),  k ← 1 + k (1 −
    x), then p − g · min(lr, x) / (√v + ε)
    """
    r = 1.0 / (k + 1.0)
    m = m + r * (g - m)
    v = v + r * (g * g - v)
    x = m * m / (v + eps)
    rate = lr if lr < x else x  # NaN stays NaN
    return p - g * rate / (math.sqrt(v) + eps), k * (1.0 - x) + 1.0, m, v


def _msvag(
    xp: Any,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    beta: float,
    new: float,
    fix: float,
    odds: float,
    lr: float,
    decay: float,
) -> None:
    blend(m, beta, g)
    blend(v, beta, g * g)
    mean = m / fix
    square = mean * mean
    noise = odds * (v / fix - square)
    whole = square + noise
    step = lr * mean * (square / xp.where(whole == 0, 1, whole)).clip(0, 1)
    if decay:
        step += decay * widened(p)
    p -= step


@update(_msvag, states=2)
def msvag(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    beta: Any,
    new: Any,
    fix: Any,
    odds: Any,
    lr: Any,
    decay: Any,
) -> Any:
    """m ← β m + (1−β) g,  v ← β v + (1−β) g², both without their bias (/ fix), then p − (lr γ m̂ +
    decay · p) for γ = m̂² / (m̂² + odds (v̂ − m̂²)) in [0, 1]; new: 1−β
    """
    m = beta * m + new * g
    v = beta * v + new * (g * g)
    mean = m / fix
    square = mean * mean
    whole = square + odds * (v / fix - square)
    share = square / (1.0 if whole == 0.0 else whole)
    share = 0.0 if share < 0.0 else share
    share = 1.0 if share > 1.0 else share
    step = lr * mean * share + (decay * p if decay != 0.0 else 0.0)
    return p - step, m, v


def _adam(
    xp: Any,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    new1: float,
    new2: float,
    rate: float,
    eps: float,
    decay: float,
    low: float,
    high: float,
) -> None:
    m += new1 * (g - m)
    v += new2 * (g * g - v)
    adam_step(xp, p, m, v, rate, eps, decay, low, high)


def adam_step(
    xp: Any,
    p: Array,
    m: Array,
    v: Array,
    rate: float,
    eps: float,
    decay: float,
    low: float,
    high: float,
) -> None:
    """p ← p − (rate m / (√v + ε), whose rate is in [low, high], + decay · p), in place."""
    step = rate / (xp.sqrt(v) + eps)
    if low > -math.inf or high < math.inf:
        step = step.clip(low, high)
    step *= m
    if decay:
        step += decay * widened(p)
    p -= step


@update(_adam, states=2)
def adam(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    new1: Any,
    new2: Any,
    rate: Any,
    eps: Any,
    decay: Any,
    low: Any,
    high: Any,
) -> Any:
    """m ← m + (1−β₁)(g − m),  v ← v + (1−β₂)(g² − v), then as :func:`adam_step`;  new: 1−β"""
    m = m + new1 * (g - m)
    v = v + new2 * (g * g - v)
    step = rate / (math.sqrt(v) + eps)
    step = low if step < low else step
    step = high if step > high else step
    step = step * m + (decay * p if decay != 0.0 else 0.0)
    return p - step, m, v


def _amsgrad(
    xp: Any,
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    top: Array,
    new1: float,
    new2: float,
    rate: float,
    eps: float,
    decay: float,
    low: float,
    high: float,
) -> None:
    m += new1 * (g - m)
    v += new2 * (g * g - v)
    xp.maximum(top, v, out=top)
    adam_step(xp, p, m, top, rate, eps, decay, low, high)


@update(_amsgrad, states=3)
def amsgrad(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    top: Any,
    new1: Any,
    new2: Any,
    rate: Any,
    eps: Any,
    decay: Any,
    low: Any,
    high: Any,
) -> Any:
    """As :func:`adam`, with the largest v so far in place of v."""
    m = m + new1 * (g - m)
    v = v + new2 * (g * g - v)
    top = top if top > v or top != top else v  # NaN stays NaN
    step = rate / (math.sqrt(top) + eps)
    step = low if step < low else step
    step = high if step > high else step
    step = step * m + (decay * p if decay != 0.0 else 0.0)
    return p - step, m, v, top


def _adamax(
    xp: Any,
    p: Array,
    g: Array,
    m: Array,
    u: Array,
    beta1: float,
    new1: float,
    beta2: float,
    eps: float,
    rate: float,
) -> None:
    blend(m, beta1, g)
    u *= beta2
    xp.maximum(u, abs(g) + eps, out=u)
    p -= rate * m / u


@update(_adamax, states=2)
def adamax(
    p: Any,
    g: Any,
    m: Any,
    u: Any,
    beta1: Any,
    new1: Any,
    beta2: Any,
    eps: Any,
    rate: Any,
) -> Any:
    """m ← β₁ m + (1−β₁) g,  u ← max(β₂ u, |g| + ε), then p − rate · m / u;  new1: 1−β₁"""
    m = beta1 * m + new1 * g
    large = abs(g) + eps
    u = beta2 * u
    u = u if u > large or u != u else large  # NaN stays NaN
    return p - rate * m / u, m, u
