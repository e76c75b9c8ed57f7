"""Elementwise computations as one pass over memory, made of a formula for one number.

``@fused(twin)`` turns a formula of up to three numbers, and perhaps a parameter that is the same
for all elements, into a function of arrays. ``twin`` computes the same in numpy's operations, of
which each passes over memory; it runs where compiled loops do not.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels.compiler import Formula, Loop, Real, Vector, least, suits

_formula: Any = None  # stands for the formula in the loops below


def _of_one(x: Vector, y: Vector) -> None:
    for i in range(y.size):
        y[i] = _formula(x[i])


def _of_two(x0: Vector, x1: Vector, y: Vector) -> None:
    for i in range(y.size):
        y[i] = _formula(x0[i], x1[i])


def _of_three(x0: Vector, x1: Vector, x2: Vector, y: Vector) -> None:
    for i in range(y.size):
        y[i] = _formula(x0[i], x1[i], x2[i])


def _of_one_and_parameter(x: Vector, y: Vector, a: Real) -> None:
    for i in range(y.size):
        y[i] = _formula(x[i], a)


def _of_two_and_parameter(x0: Vector, x1: Vector, y: Vector, a: Real) -> None:
    for i in range(y.size):
        y[i] = _formula(x0[i], x1[i], a)


_LOOPS: dict[tuple[int, bool], Any] = {
    (1, False): _of_one,
    (2, False): _of_two,
    (3, False): _of_three,
    (1, True): _of_one_and_parameter,
    (2, True): _of_two_and_parameter,
}


class Fused:
    """An elementwise function of arrays of one shape.

    Args:
        compute: the formula. Arguments named ``a`` are parameters, numbers that all elements share.
        twin: the same of ``xp`` (numpy or CuPy) and arrays.
    """

    def __init__(self, compute: Callable[..., Any], twin: Callable[..., Array]) -> None:
        names = list(inspect.signature(compute).parameters)
        self.arrays = len(names) - ("a" in names)
        self.twin = twin
        self.formula = Formula(compute)  # type: ignore[arg-type]
        self.loop = Loop(
            _LOOPS[self.arrays, "a" in names],
            name=f"{compute.__module__.rpartition('.')[2]}.{compute.__name__}",
            constants={"_formula": self.formula},
        )
        functools.update_wrapper(self, compute)

    def __call__(self, *args: Any) -> Array:
        """Compute it of the arrays, and the parameter if there is one."""
        x = args[0]
        if x.size >= least():  # small arrays go straight to the twin
            xs = args[: self.arrays]
            if suits(*xs):
                y: Array = np.empty_like(x)
                self.loop(*[z.reshape(-1) for z in (*xs, y)], *args[self.arrays :])
                return y
            if self.takes(x) and all([type(z) is np.ndarray and z.dtype == x.dtype for z in xs]):
                return self._in_order(xs, args[self.arrays :])
        result: Array = self.twin(backend.get_array_module(x), *args)
        return result

    def takes(self, x: Array) -> bool:
        """Return whether the loop runs if the first array is x: its axes may lie in any order in
        memory, but without gaps.
        """
        return suits(x) or (
            x.size >= least()
            and not x.flags.c_contiguous
            and suits(x.transpose(backend.memory_order(x)))
        )

    def _in_order(self, xs: tuple[Array, ...], parameters: tuple[float, ...]) -> Array:
        """Compute it in the order in which the first array lies in memory."""
        order = backend.memory_order(xs[0])
        turned = [np.require(x.transpose(order), None, ["C", "A", "W"]) for x in xs]
        y: Array = np.empty_like(turned[0])
        self.loop(*[z.reshape(-1) for z in (*turned, y)], *parameters)
        return y.transpose(sorted(range(y.ndim), key=order.__getitem__))


def fused(twin: Callable[..., Array]) -> Callable[[Callable[..., Any]], Fused]:
    """Make an elementwise function of arrays from a formula for one number.

    Example:
        >>> @fused(twin=lambda xp, x, y: x * y + x)
        ... def product_and_sum(x, y):
        ...     return x * y + x
        >>> product_and_sum(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
        array([ 4., 10.])
    """
    return lambda compute: Fused(compute, twin)
