"""Elementwise computations, and sums of them, as one pass over memory, made of a formula for one
number.

``@fused(twin)`` turns a formula into a function of arrays. The annotations of its parameters say
what they are: an array of the result's shape; ``PerChannel``, an array that broadcasts to it (the
slope of each channel, the factor of each row or column); ``Real``, a number that all elements
share. A formula may return several numbers: the first ``each`` become arrays, the others are added
up, in float64: over all that share an element of the ``PerChannel`` arrays, or over everything if
there are none. That is what the gradient of such an array needs, and a loss.

``twin`` computes the same in numpy's operations, of which each passes over memory; it runs where
compiled loops do not. The loops are written out here, for the parameters and results of each
formula.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Annotated, Any, Generic, TypeAlias, TypeVar, get_args, get_type_hints, overload

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.kernels import compiler, translation, tuning
from mnpar.kernels.compiler import (
    Cube,
    Doubles,
    Formula,
    Loop,
    Matrix,
    Real,
    Vector,
    contiguous,
    suits_at_any_size,
)
from mnpar.kernels.moments import RUN, ChannelView, channel_view
from mnpar.kernels.side_by_side import run_loop, threads_for

Results = TypeVar("Results", bound=Array | tuple[Array, ...])
PerChannel: TypeAlias = Annotated[Array, "PerChannel"]

# Loops over vectors; over (A, C, B), where runs of B share an element of the PerChannel arrays and
# are added up in their own dtype, ``RUN`` at a time; and over (A, C). A line is left out where
# it has nothing to do.
_ELEMENTS = """
def loop({arguments}, thread, begin, end):
    {parts} = {of_part}
    for i in range(part_x0.size):
        {results} = formula({values})
"""
_RUNS = """
def loop({arguments}):
    A, C, B = x0.shape
    for a in range(A):
        for c in range(C):
            {channels} = {of_channel}
            for start in range(0, B, {step}):
                {runs} = {of_run}
                {terms} = {zeros}
                for i in range(run_x0.size):
                    {results} = formula({values})
                    {terms} = {sums}
                {totals} = {more}
"""
_COLUMNS = """
def loop({arguments}):
    A, C = x0.shape
    for a in range(A):
        for c in range(C):
            {results} = formula({values})
            {totals} = {more}
"""


def _write_loop(text: str, kinds: list[str], each: int, sums: int) -> FunctionType:
    """Write a loop for the parameters and results of a formula."""
    array, place = {
        _ELEMENTS: (Vector, "part_{}[i]"),
        _RUNS: (Cube, "run_{}[i]"),
        _COLUMNS: (Matrix, "{}[a, c]"),
    }[text]
    channel = "{}[c]" if text is _COLUMNS else "channel_{}"
    types = {
        f"x{k}": {"Each": array, "PerChannel": Vector}.get(kind, Real)
        for k, kind in enumerate(kinds)
    }
    written = {"Each": place, "PerChannel": channel, "Real": "{}"}
    values = [written[kind].format(x) for x, kind in zip(types, kinds, strict=True)]
    channels = [x for x, kind in zip(types, kinds, strict=True) if kind == "PerChannel"]
    arrays = [x for x, kind in zip(types, kinds, strict=True) if kind == "Each"]
    ys = [f"y{k}" for k in range(each)]
    arrays += ys
    terms = [f"term{k}" for k in range(sums)]
    added = [f"added{k}" for k in range(sums)]
    totals = [f"total{k}[c]" for k in range(sums)]
    types |= dict.fromkeys(ys, array) | {f"total{k}": Doubles for k in range(sums)}
    runs = text is _RUNS
    lists = {
        "arguments": list(types),
        "results": [place.format(y) for y in ys] + added,
        "values": values,
        "parts": [f"part_{x}" for x in arrays],
        "of_part": [f"{x}[begin:end]" for x in arrays],
        "channels": [f"channel_{x}" for x in channels],
        "of_channel": [f"{x}[c]" for x in channels],
        "step": ["RUN" if sums else "B"],
        "runs": [f"run_{x}" for x in arrays],
        "of_run": [f"{x}[a, c, start : start + {'RUN' if sums else 'B'}]" for x in arrays],
        "terms": terms,
        "zeros": ["0.0"] * sums,
        "sums": [f"{a} + {b}" for a, b in zip(terms, added, strict=True)],
        "totals": totals,
        "more": [f"{a} + {b}" for a, b in zip(totals, terms if runs else added, strict=True)],
    }
    lines = text.format(**{name: ", ".join(items) for name, items in lists.items()}).splitlines()
    names: dict[str, Any] = {"__name__": __name__}
    code = "\n".join([line for line in lines if line.strip() != "="])
    exec(compile(code, __file__, "exec"), names)
    loop: FunctionType = names["loop"]
    part = ("thread", "begin", "end") if text is _ELEMENTS else ()
    loop.__annotations__ = types | dict.fromkeys(part, int)
    return loop


class Fused(Generic[Results]):
    """A function of arrays made of a formula for one number.

    Args:
        compute: the formula.
        twin: the same of ``xp`` (numpy or CuPy) and the arguments.
        each: how many results are arrays.
        sums: how many results are added up.
        least: the constant of tuning.py that says how many elements an array has at least that is
            not left to the twin.
    """

    def __init__(
        self,
        compute: Callable[..., Any],
        twin: Callable[..., Any],
        each: int = 1,
        sums: int = 0,
        least: str = "COMPILED_LEAST",
    ) -> None:
        self.twin, self.each, self.sums, self.least = twin, each, sums, least
        hints = get_type_hints(compute, include_extras=True)
        self.kinds = [
            (get_args(hints.get(name)) or ("", "Each"))[1]
            for name in inspect.signature(compute).parameters
        ]
        self.name = f"{compute.__module__.rpartition('.')[2]}.{compute.__name__}"
        self.formula = Formula(compute)  # type: ignore[arg-type]
        self._of_kind = {
            kind: [k for k, other in enumerate(self.kinds) if other == kind]
            for kind in ("Each", "PerChannel", "Real")
        }
        self.elementwise = not sums and "PerChannel" not in self.kinds
        if self.elementwise:
            self.loop = self._loop(_ELEMENTS, entry="parts")
        else:
            self.runs = self._loop(_RUNS, "_runs")
            self.columns = self._loop(_COLUMNS, "_columns")
        functools.update_wrapper(self, compute)

    def _loop(self, text: str, suffix: str = "", entry: translation.Entry = "whole") -> Loop:
        loop = _write_loop(text, self.kinds, self.each, self.sums)
        constants = {"formula": self.formula, "RUN": RUN}
        return Loop(loop, self.name + suffix, constants, entry=entry)

    def __call__(self, *args: Any) -> Results:
        """Compute it of the arrays and numbers.

        Returns:
            The results, a tuple of them if there are several: arrays like the first argument, and
            sums in float64, in the shape of the ``PerChannel`` arrays, or of none. The twin may
            return sums of another dtype.
        """
        x = args[0]
        if x.size >= compiler.least(self.least):  # small arrays go straight to the twin
            found: Results | None = self._by_loops(args)
            if found is not None:
                return found
        xp = np if type(x) is np.ndarray else backend.get_array_module(x)
        result: Results = self.twin(xp, *args)
        return result

    def takes(self, x: Array) -> bool:
        """Return whether the loop runs if the first array is x: its axes may lie in any order in
        memory, but without gaps.
        """
        least = compiler.least(self.least)
        return x.size >= least and (suits_at_any_size(x) or _order(x) is not None)

    def _by_loops(self, args: tuple[Any, ...]) -> Any:
        """The results; None where loops do not take the arrays."""
        xs = [args[k] for k in self._of_kind["Each"]]
        shape = xs[0].shape
        for x in xs:
            if x.shape != shape:
                return None
        order = None
        if not suits_at_any_size(*xs):
            order = next((order for x in xs if (order := _order(x)) is not None), None)
            if order is None or not all([type(x) is np.ndarray for x in xs]):
                return None
            xs = [contiguous(x.transpose(order)) for x in xs]
            if not suits_at_any_size(*xs):
                return None
        ys = [np.empty_like(xs[0]) for _ in range(self.each)]
        numbers = [args[k] for k in self._of_kind["Real"]]
        if self.elementwise:
            size = xs[0].size
            threads = threads_for(size, size * (len(xs) + len(ys)))
            run_loop(self.loop, size, threads, *xs, *numbers, *ys)
        else:
            channels = [args[k] for k in self._of_kind["PerChannel"]]
            sums = self._sum(xs, channels, numbers, ys, order)
            if sums is None:
                return None
            ys += sums
        if order is not None:
            back = _inverse(order)
            ys[: self.each] = [y.transpose(back) for y in ys[: self.each]]
        return ys[0] if len(ys) == 1 else tuple(ys)

    def _sum(
        self,
        xs: list[Array],
        channels: list[Array],
        numbers: list[float],
        ys: list[Array],
        order: tuple[int, ...] | None,
    ) -> list[Array] | None:
        """Compute the arrays ``ys``, and return the sums; None where loops do not take the
        channels.
        """
        x = xs[0]
        view: ChannelView | None = (1, 1, x.size)
        shape: tuple[int, ...] = ()
        aligned: tuple[int, ...] = ()
        if channels:
            shape = channels[0].shape
            for z in channels:
                if type(z) is not np.ndarray or z.shape != shape:
                    return None
                if not np.can_cast(z.dtype, x.dtype):  # the results are of the wider dtype
                    return None
            channels = [z.reshape((1,) * (x.ndim - z.ndim) + z.shape) for z in channels]
            if order is not None:
                channels = [z.transpose(order) for z in channels]
            aligned = channels[0].shape
            view = _channel_view(x.shape, aligned)
            channels = [np.require(z.reshape(-1), x.dtype, ["C", "A", "W"]) for z in channels]
        if view is None or not x.size or 1 < view[2] < tuning.CHANNEL_RUN:
            return None
        A, C, B = view
        sums = [np.zeros(C) for _ in range(self.sums)]
        arrays = [z.reshape((A, C) if B == 1 else view) for z in (*xs, *ys)]
        n = len(xs)
        (self.columns if B == 1 else self.runs)(
            *arrays[:n], *channels, *numbers, *arrays[n:], *sums
        )
        if order is None or not channels:
            return [z.reshape(shape) for z in sums]
        back = _inverse(order)
        return [z.reshape(aligned).transpose(back).reshape(shape) for z in sums]


@functools.lru_cache(maxsize=64)
def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _order(x: Array) -> tuple[int, ...] | None:
    """The axes of an array in the order in which they lie in memory; None if loops do not take it
    even so.
    """
    order = backend.memory_order(x)
    return order if suits_at_any_size(x.transpose(order)) else None


def _channel_view(shape: tuple[int, ...], channels: tuple[int, ...]) -> ChannelView | None:
    """The shape as (A, C, B), so that an array broadcasts to it as (C, 1); None if it does not.

    Example:
        >>> _channel_view((32, 64, 28, 28), (1, 64, 1, 1)), _channel_view((8, 5), (8, 1))
        ((32, 64, 784), (1, 8, 5))
    """
    own = [axis for axis, n in enumerate(channels) if n != 1]
    first, end = (own[0], own[-1] + 1) if own else (0, 0)
    alike = channels[first:end] == shape[first:end] and len(channels) == len(shape)
    return channel_view(shape, first, end) if alike else None


@overload
def fused(
    twin: Callable[..., Any], *, least: str = "COMPILED_LEAST"
) -> Callable[[Callable[..., Any]], Fused[Array]]: ...
@overload
def fused(
    twin: Callable[..., Any], each: int = 1, sums: int = 0, least: str = "COMPILED_LEAST"
) -> Callable[[Callable[..., Any]], Fused[tuple[Array, ...]]]: ...
def fused(
    twin: Callable[..., Any], each: int = 1, sums: int = 0, least: str = "COMPILED_LEAST"
) -> Callable[[Callable[..., Any]], Fused[Any]]:
    """Make a function of arrays from a formula for one number.

    Args:
        twin: the same of ``xp`` (numpy or CuPy) and arrays.
        each: how many of its results, the first, are arrays.
        sums: how many of its results, those after them, are added up.
        least: the constant of tuning.py that says how many elements an array has at least that is
            not left to the twin: it counts the twin's passes.

    Example:
        >>> @fused(twin=lambda xp, x, y: x * y + x)
        ... def product_and_sum(x: Any, y: Any) -> Any:
        ...     return x * y + x
        >>> product_and_sum(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
        array([ 4., 10.])
    """
    return lambda compute: Fused(compute, twin, each, sums, least)
