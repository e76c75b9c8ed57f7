"""Small parts, one for each rank, side by side in the opening of a collective: a table of their forms, then their bytes."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple

import numpy as np

from mnpar.backend import Array
from mnpar.communicators import message

APART = 2**40  # said of parts that cannot lie there (objects, or arrays on a GPU): more than any opening holds


class Place(NamedTuple):
    """Where a part lies, and what it is."""

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
    """What a table says."""
    found: list[Place | None] = []
    start = 0
    for form in json.loads(text):
        if form is None:
            found.append(None)
            continue
        dtype, shape = np.dtype(form[0]), tuple(form[1])
        found.append(Place(dtype, shape, start))
        start += dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return tuple(found)


def forms_of(xs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The form of each part; None of one that is not there.

    Raises:
        TypeError: it cannot travel.
    """
    return tuple([None if x is None else (message.check(x), x.shape) for x in xs])


def together(text: bytes, xs: tuple[Any, ...]) -> bytes:
    """The table, and then the parts themselves."""
    return b"".join([text, *[x.tobytes() for x in xs if x is not None]])


def on_host(xs: tuple[Any, ...]) -> bool:
    """Whether all of them are numpy's."""
    return all([x is None or type(x) is np.ndarray for x in xs])


def part(raw: Any, start: int, text: bytes, index: int) -> Array | None:
    """A view of one of the parts behind a table that begins at ``start``."""
    place = places(text)[index]
    return None if place is None else np.ndarray(place.shape, place.dtype, raw, start + len(text) + place.start)
