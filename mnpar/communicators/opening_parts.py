"""The arrays that a rank gives to an alltoall, reduce_scatter or scatter, if they fit in the
opening.

In the rank's block stands a table of their dtypes and shapes, and then their bytes, one after the
other.
"""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import message

APART = (
    2**40
    # bytes, stated of parts that never go in an opening (objects, arrays on a GPU): more than any
    # has room for
)


class Place(NamedTuple):
    """The dtype and shape of a part, and where it is in the block."""

    dtype: Any
    shape: tuple[int, ...]
    start: int  # behind the table


@functools.lru_cache(1000)
def table(forms: tuple[Any, ...]) -> bytes:
    """The forms, (name of dtype, shape) or None each, as text of a multiple of 64 bytes."""
    text = json.dumps(forms, separators=(",", ":")).encode()
    return text.ljust(-(-len(text) // 64) * 64)


@functools.lru_cache(1000)
def places(text: bytes) -> tuple[Place | None, ...]:
    """Where each part is, by the table; None for a part that does not exist."""
    found: list[Place | None] = []
    start = 0
    for form in json.loads(text):
        if form is None:
            found.append(None)
            continue
        dtype = np.dtype(form[0])
        shape = tuple(form[1])
        found.append(Place(dtype, shape, start))
        start += dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return tuple(found)


def forms_of(xs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The form of each part, (name of dtype, shape); None for a part that does not exist.

    Raises:
        TypeError: a part cannot be sent.
    """
    return tuple([None if x is None else (message.check(x), x.shape) for x in xs])


def together(text: bytes, xs: tuple[Any, ...]) -> bytes:
    """The table, and then the parts themselves."""
    return b"".join([text, *[x.tobytes() for x in xs if x is not None]])


def on_host(xs: tuple[Any, ...]) -> bool:
    """Whether all parts are numpy arrays."""
    return all([x is None or type(x) is np.ndarray for x in xs])


def part(raw: Any, start: int, text: bytes, index: int) -> Array | None:
    """A view of one of the parts behind a table that begins at ``start``."""
    place = places(text)[index]
    return (
        None
        if place is None
        else np.ndarray(place.shape, place.dtype, raw, start + len(text) + place.start)
    )
