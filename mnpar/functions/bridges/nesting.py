"""Arguments and results that lie in tuples, lists and dicts, and the arrays among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mnpar.backend import Array
from mnpar.variable import Variable


class ArrayPlace(NamedTuple):
    """The place at which an array stood, by its number."""

    number: int


def replaced(value: Any, kind: type | tuple[type, ...], by: Callable[[Any], Any]) -> Any:
    """Return a value with ``by(x)`` in place of each ``x`` of this kind, in tuples, lists and dicts
    too.

    Example:
        >>> replaced({"a": [1, 2.0], "b": (3, None)}, int, str)
        {'a': ['1', 2.0], 'b': ('3', None)}
    """
    if isinstance(value, kind):
        return by(value)
    if type(value) in (tuple, list):  # and not in a named tuple, such as a box of a plan
        return type(value)([replaced(one, kind, by) for one in value])
    if type(value) is dict:
        return {key: replaced(one, kind, by) for key, one in value.items()}
    return value


def arrays_in(value: Any) -> tuple[Any, list[Variable | Array]]:
    """Return a value with a :class:`ArrayPlace` for each Variable and array in it, and these.

    Example:
        >>> arrays_in(([np.ones(1)], 2, {"x": np.zeros(1)}))[0]
        ([ArrayPlace(number=0)], 2, {'x': ArrayPlace(number=1)})
    """
    found: list[Variable | Array] = []

    def leave(x: Variable | Array) -> ArrayPlace:
        found.append(x)
        return ArrayPlace(len(found) - 1)

    return replaced(value, (Variable, np.ndarray), leave), found


def filled(value: Any, xs: Sequence[Any]) -> Any:
    """Return a value with the objects ``xs`` at its places."""
    return replaced(value, ArrayPlace, lambda place: xs[place.number])


def check_on_host(who: str, arrays: Iterable[Any]) -> None:
    """Raise TypeError if an array is not on the host."""
    for i, x in enumerate(arrays):
        if not isinstance(x, np.ndarray):
            kind = "None" if x is None else f"a {type(x).__module__.split('.')[0]} array"
            raise TypeError(
                f"{who} takes arrays on the host, but array {i} of its arguments is {kind}: "
                "x.to_cpu() moves a Variable there"
            )


def native(x: Array) -> Array:
    """Return an array in the byte order of this machine, the only one that compiled code reads.

    Example:
        >>> native(np.ones(2, ">f4")).dtype
        dtype('float32')
    """
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def separate(gs: Iterable[Array | None], others: Iterable[Array]) -> list[Array | None]:
    """Return gradients that share memory neither with each other nor with other arrays: a library
    may hand on what it was given, and mnpar adds to gradients in place.

    Example:
        >>> g = np.ones(2)
        >>> a, b = separate([g, g], [])
        >>> np.shares_memory(a, b)
        False
    """
    taken = list(others)
    results: list[Array | None] = []
    for g in gs:
        if g is not None:
            repeated = 0 in g.strides and g.size > 1
            if repeated or not g.flags.writeable or any(np.may_share_memory(g, x) for x in taken):
                g = g.copy()
            taken.append(g)
        results.append(g)
    return results
