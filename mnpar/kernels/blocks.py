"""Update rules as formulas that are applied block by block, so that intermediate results stay in
the cache.

On arrays as large as the parameter a formula of ten operations makes ten passes over memory, and as
many new arrays. In blocks it makes one, and is written the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mnpar.backend import Array

# of a block's arrays together: with what is computed of them they fit a cache of 2 MB
ELEMENTS = 2**17


def blocks(p: Array, g: Array, *state: Array) -> Iterable[Sequence[Array]]:
    """Yield a parameter's array, its gradient (of at least 32 bits) and its state, in flat views of
    matching blocks.

    Small arrays, arrays on a device and those that do not lie in order are one block, of their own
    shape.

    Args:
        p, g: the parameter, to be changed in place, and its gradient.
        state: arrays of that shape, to be changed in place, too.
    """
    arrays = (p, g, *state)
    size = ELEMENTS // len(arrays)
    if p.size > size and all([type(a) is np.ndarray and a.flags.c_contiguous for a in arrays]):
        return _cut([a.reshape(-1) for a in arrays], size)
    return ((p, widened(g), *state),)


def _cut(flat: list[Array], size: int) -> Iterator[Sequence[Array]]:
    for start in range(0, flat[0].size, size):
        parts = [a[start : start + size] for a in flat]
        parts[1] = widened(parts[1])
        yield parts


def widened(g: Array) -> Array:
    """Return an array of at least 32 bits: squares of float16 vanish in float16."""
    return g if g.dtype.itemsize >= 4 else g.astype(np.promote_types(g.dtype, np.float32))


def blend(mean: Array, keep: float, new: Array) -> None:
    """mean ← keep · mean + (1 − keep) · new, in place."""
    mean *= keep
    mean += (1 - keep) * new
