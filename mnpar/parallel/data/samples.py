"""How many samples the arguments of a loss function hold.

An array, or several of equal length, hold one sample in each row. In a list of arrays that are of
one kind and of different lengths, each is a sample, a sequence. If their lengths are equal, they
could be either; then the other arguments tell, or the batches before, or the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mnpar.link import Link

ROWS, EACH = "rows", "each"  # what the samples of several arrays are: rows of all, or each array


class Reading(NamedTuple):
    """The number of samples that an argument holds, in each way in which it can be read."""

    rows: int | None = None
    each: int | None = None

    @property
    def sure(self) -> int | None:
        """The number, if there is one way, or all give the same; else None."""
        if self.rows is None or self.each is None or self.rows == self.each:
            return self.each if self.rows is None else self.rows
        return None


def samples_of(*args: Any, **kwds: Any) -> float:
    """Return how many samples the arguments of a loss function hold; -1 if none has a length.

    Raises:
        ValueError: a list of arrays can be read in two ways.

    Example:
        >>> import numpy as np
        >>> from mnpar.parallel.data.samples import samples_of
        >>> x, t = np.ones((5, 3)), np.zeros(5, int)
        >>> samples_of(x, t), samples_of([x, t]), samples_of((x, t)), samples_of({"x": x, "t": t})
        (5, 5, 5, 5)
        >>> samples_of([np.ones((5, 3)), np.ones((4, 3))])  # sequences
        2
    """
    return SampleCounter().count(args, kwds)


def positions_of(*args: Any, **kwds: Any) -> float:
    """Return how many positions of sequences the arguments of a loss function hold: rows times
    columns of the first array that has both, and else its samples.

    Example:
        >>> import numpy as np
        >>> from mnpar.parallel.data.samples import positions_of
        >>> positions_of(np.zeros((5, 3), int)), positions_of(np.zeros((5, 3, 8)))
        (15, 15)
    """
    given = (*args, *kwds.values())
    shapes: list[tuple[int, ...]] = [getattr(arg, "shape", None) or () for arg in given]
    found = next((shape for shape in shapes if len(shape) > 1), None)
    return samples_of(*args, **kwds) if found is None else int(found[0] * found[1])


class SampleCounter:
    """Counts the samples of one model's batches, and remembers how lists were to be read.

    Args:
        samples: the user's function of the arguments, or :func:`samples_of`.
        strict: whether it matters how a list is read; if not, each array is a sample.
    """

    def __init__(self, samples: Callable[..., float] = samples_of, strict: bool = True) -> None:
        self._samples, self._strict = samples, strict
        self._known: dict[int | str, str] = {}  # ROWS or EACH, of arguments that were lists

    def count(self, args: Sequence[Any], kwds: Mapping[str, Any]) -> float:
        """Return the number of samples; -1 if no argument has a length.

        Raises:
            ValueError: a list can be read in two ways, and nothing tells in which.
        """
        if self._samples is not samples_of:
            return self._samples(*args, **kwds)
        first = args[0] if args and len(args) < 3 and not self._known else None
        if type(first) is np.ndarray and first.ndim:
            return len(first)
        if len(args) > 2 and _are_tokens(args):
            self._known["args"] = EACH
        if self._known.get("args") == EACH:
            return len(args)
        doubt: tuple[int | str, Reading] | None = None
        named: list[tuple[int | str, Any]] = [*enumerate(args), *kwds.items()]
        for key, arg in named:
            if isinstance(arg, list | tuple) and self._known.get(key) == EACH:
                return len(arg)
            reading = _read(arg)
            n = None if reading is None else reading.sure
            if reading is None or (n is None and doubt is not None):
                continue
            if n is None:
                doubt = key, reading
            elif doubt is None:
                if reading.rows is None:
                    self._known[key] = EACH
                return n
            elif n in doubt[1]:
                self._known[doubt[0]] = ROWS if n == doubt[1].rows else EACH
                return n
        if doubt is None:
            return -1
        key, reading = doubt
        assert reading.rows is not None
        assert reading.each is not None
        way = self._known.get(key, None if self._strict else EACH)
        if way is None:
            arg = args[key] if isinstance(key, int) else kwds[key]
            shape = getattr(arg[0], "shape", None)
            first = f"of shape {shape}" if shape else f"a {type(arg[0]).__name__}"
            raise ValueError(_UNSURE.format(reading.each, reading.rows, first))
        return reading.rows if way == ROWS else reading.each


_UNSURE = (
    "a loss is weighted by its samples, but this list of {0}, the first {2}, can be {0} samples, "
    "or {1}, with a part of each in each array. If they are {1}, give the arrays one by one, "
    "update(lossfun, x, t), or in a tuple; if they are {0}, say so: samples=lambda xs: len(xs), of "
    "create_multi_node_optimizer or DistributedDataParallel"
)


def _read(arg: Any) -> Reading | None:
    """Return how many samples an argument holds; None if it has no length."""
    if isinstance(arg, Link | str):
        return None  # the length of a chain counts its links
    # a divided Variable has a shape, and no array
    if getattr(arg, "layout", None) is None and getattr(arg, "array", arg) is None:
        return None
    shape = getattr(arg, "shape", None)
    if shape is not None:
        return Reading(rows=shape[0]) if shape else None
    if isinstance(arg, dict):
        return _first(arg.values())
    if isinstance(arg, tuple):
        if len(arg) > 2 and _are_tokens(arg):
            return Reading(each=len(arg))
        if len(_lengths(arg)) > 1 and len(dict.fromkeys(map(_kind, arg))) == 1:
            return Reading(rows=len(arg[0]), each=len(arg))
        return _first(arg)
    if isinstance(arg, list):
        return _read_list(arg)
    return Reading(each=len(arg)) if hasattr(arg, "__len__") else None


def _first(parts: Any) -> Reading | None:
    """Return the reading of the first part that has a length."""
    return next((reading for part in parts if (reading := _read(part)) is not None), None)


def _read_list(arg: list[Any]) -> Reading:
    """Return how many samples a list holds: of examples, of sequences, or of columns."""
    n = len(arg)
    if n and all([isinstance(one, list) and one and _lengths(one) for one in arg]):
        lengths = dict.fromkeys([len(one) for one in arg])  # columns of sequences, perhaps
        return Reading(each=n) if len(lengths) > 1 else Reading(rows=len(arg[0]), each=n)
    lengths = _lengths(arg)
    if len(lengths) != 1:
        return Reading(each=n)  # sequences, or examples that are no arrays
    (rows,) = lengths
    columns = len(dict.fromkeys(map(_kind, arg))) > 1
    return Reading(rows=rows) if columns else Reading(rows=rows, each=n)


def _lengths(arrays: Sequence[Any]) -> dict[int, None]:
    """Return the different lengths of arrays; none if something else is among them."""
    kinds = [_kind(array) for array in arrays]
    return {} if None in kinds else dict.fromkeys([len(array) for array in arrays])


def _kind(array: Any) -> tuple[Any, int] | None:
    """Return an array's dtype and number of axes; None if it is no array, or a number."""
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    return (dtype, len(shape)) if shape and dtype is not None else None


def _are_tokens(arrays: Sequence[Any]) -> bool:
    """Return whether these are sequences of integers, of different lengths."""
    kinds = dict.fromkeys([_kind(array) for array in arrays])
    kind = next(iter(kinds))
    one = len(kinds) == 1 and kind is not None and kind[1] == 1 and kind[0].kind in "iu"
    return one and len(_lengths(arrays)) > 1
