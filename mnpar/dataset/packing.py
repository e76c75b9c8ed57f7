"""Converts a list of examples to a few arrays and a description of their nesting, and back, to send
them to other ranks.

A batch of 100 pairs (image, label) is two stacked arrays and a :data:`Spec` that says "pairs":
arrays are sent as arrays, the spec is pickled only when it differs from that of the last batch.
Examples may nest tuples, dicts, lists, arrays of equal or different shapes, numpy's and Python's
numbers; types and dtypes are preserved. Other objects (strings, None …) are pickled, between the
ranks of one job only. The arrays that :meth:`Folded.unfold` returns are views of the stacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np

from mnpar import backend
from mnpar.backend import Array

Spec: TypeAlias = tuple[Any, ...]
NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
OBJECTS: Spec = ("objects",)
MOST_AXES = 11  # a stack has one more, and a message has room for 12


@dataclass(frozen=True)
class Folded:
    """A nested list of examples as arrays, objects and the :data:`Spec` that puts them together
    again.

    Example:
        >>> import numpy as np
        >>> from mnpar.dataset.packing import fold
        >>> folded = fold([(np.ones(3), 1), (np.zeros(3), 0)])
        >>> folded.spec
        ('tuple', <class 'tuple'>, (('stack',), ('numbers', 'list')))
        >>> [array.shape for array in folded.arrays]
        [(2, 3), (2,)]
        >>> folded.unfold()[1]
        (array([0., 0., 0.]), 0)
    """

    spec: Spec
    arrays: list[Array]
    objects: list[Any]
    length: int

    def unfold(self) -> list[Any]:
        """Return the list of examples, with their types, dtypes and shapes."""
        return _unfold(self.spec, iter(self.arrays), iter(self.objects), self.length)


def fold(examples: Sequence[Any]) -> Folded:
    """Convert a list of examples; :meth:`Folded.unfold` is the inverse."""
    arrays: list[Array] = []
    objects: list[Any] = []
    return Folded(_fold(examples, arrays, objects), arrays, objects, len(examples))


def _fold(xs: Sequence[Any], arrays: list[Array], objects: list[Any]) -> Spec:
    """Append the contents of ``xs`` to ``arrays`` and ``objects``; returns their spec."""
    kind = type(xs[0]) if len(xs) else None
    spec: Spec | None = None
    if kind is None or any(type(x) is not kind for x in xs):
        pass
    elif backend.is_array(xs[0]):
        spec = _fold_arrays(xs, arrays)
    elif kind in NUMBERS or issubclass(kind, np.generic):
        spec = _fold_numbers(kind, xs, arrays)
    elif kind is list:
        arrays.append(np.array([len(x) for x in xs], np.int64))
        spec = ("list", _fold(list(chain.from_iterable(xs)), arrays, objects))
    elif kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_make")):
        if len({len(x) for x in xs}) == 1:
            spec = (
                "tuple",
                kind,
                tuple(_fold(column, arrays, objects) for column in zip(*xs, strict=True)),
            )
    elif kind is dict and all(list(x) == list(xs[0]) for x in xs):
        spec = (
            "dict",
            tuple(xs[0]),
            tuple(_fold([x[key] for x in xs], arrays, objects) for key in xs[0]),
        )
    if spec is None:
        objects.extend(xs)
        return OBJECTS
    return spec


def _fold_arrays(xs: Sequence[Array], arrays: list[Array]) -> Spec | None:
    first = xs[0]
    xp = backend.get_array_module(first)
    if first.dtype.kind not in "biufc" or any(
        x.dtype != first.dtype or x.ndim != first.ndim for x in xs
    ):
        return None
    if first.ndim > MOST_AXES or (xp is np and type(first) is not np.ndarray):
        return None
    if all(x.shape == first.shape for x in xs):
        # numpy's stack would give big-endian numbers in the machine's order
        arrays.append(
            np.stack(xs, out=np.empty((len(xs), *first.shape), first.dtype))
            if xp is np
            else xp.stack(xs)
        )
        return ("stack",)
    arrays.append(np.array([x.shape for x in xs], np.int64))
    flat = [x.ravel() for x in xs]
    arrays.append(
        np.concatenate(flat, out=np.empty(sum(map(len, flat)), first.dtype))
        if xp is np
        else xp.concatenate(flat)
    )
    return ("ragged",)


def _fold_numbers(kind: type, xs: Sequence[Any], arrays: list[Array]) -> Spec | None:
    dtype = NUMBERS[kind] if kind in NUMBERS else xs[0].dtype
    if np.dtype(dtype).kind not in "biufc":
        return None
    try:
        arrays.append(np.array(xs, dtype))
    except OverflowError:  # a Python int beyond 64 bits
        return None
    return ("numbers", "list" if kind in NUMBERS else "numpy")


def _unfold(spec: Spec, arrays: Iterator[Array], objects: Iterator[Any], n: int) -> list[Any]:
    match spec:
        case ("objects",):
            return list(islice(objects, n))
        case ("stack",):
            column = next(arrays)
            return [column[i, ...] for i in range(n)]  # the dots keep 0-d arrays arrays
        case ("ragged",):
            return _unfold_ragged(next(arrays), next(arrays))
        case ("numbers", "list"):
            return list(next(arrays).tolist())
        case ("numbers", _):
            return list(next(arrays))
        case ("list", inner):
            lengths = next(arrays).tolist()
            items = iter(_unfold(inner, arrays, objects, sum(lengths)))
            return [list(islice(items, length)) for length in lengths]
        case ("tuple", kind, inners):
            columns = [_unfold(inner, arrays, objects, n) for inner in inners]
            rows: Any = zip(*columns, strict=True) if columns else [()] * n
            return list(rows) if kind is tuple else [kind._make(row) for row in rows]
        case ("dict", keys, inners):
            columns = [_unfold(inner, arrays, objects, n) for inner in inners]
            return [
                dict(zip(keys, row, strict=True))
                for row in (zip(*columns, strict=True) if columns else [()] * n)
            ]
    raise ValueError(f"unknown packing {spec!r}")


def _unfold_ragged(shapes: Array, flat: Array) -> list[Array]:
    ends = np.cumsum(shapes.prod(axis=1)).tolist()
    begins = [0, *ends[:-1]]
    return [
        flat[a:b].reshape(shape) for a, b, shape in zip(begins, ends, shapes.tolist(), strict=True)
    ]
