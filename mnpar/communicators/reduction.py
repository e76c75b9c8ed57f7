"""Reductions that numpy computes in rank order: the same bits on all ranks, whatever transport has
carried the arrays.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.communicators.wire import MEANS, UPDATE, Call

# the caller divides for a mean:
UFUNCS = {
    "sum": np.add,
    **dict.fromkeys(MEANS, np.add),
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}
# ranks: with more, the MPI libraries' rings and trees win over messages from each to each
DIRECT = 16
# bytes: an array of at most so many is gathered everywhere and reduced there, a larger one in parts
GATHERED = 2**15
REDUCING = ("allreduce", UPDATE, "reduce", "reduce_from", "reduce_scatter", "scan", "exscan")


def check_reducible(x: Array, call: Call) -> None:
    """Raise TypeError if the call is a reduction that is not defined for the array's dtype."""
    if call.op not in REDUCING or not backend.is_array(x):
        return
    if x.dtype.kind in "bmM" and call.reduction in ("sum", *MEANS, "prod"):
        verb = {"sum": "sum", "prod": "multiply"}.get(call.reduction, "average")
        remedy = "x.astype('i4')" if x.dtype.kind == "b" else "x.astype('i8')"
        raise TypeError(
            f"{call.name} cannot {verb} {x.dtype}: convert it to integers first, {remedy}"
        )
    if x.dtype.kind == "c" and call.reduction in ("max", "min"):
        raise TypeError(
            f"{call.name}: complex numbers have no {call.reduction}: reduce abs(x), or x.real "
            "and x.imag"
        )


def rounds(size: int) -> int:
    """Return the messages of a rank in an algorithm in which it knows of twice as many ranks after
    each.
    """
    return (size - 1).bit_length()


def parent(rank: int, root: int, size: int) -> int:
    """Return from which rank one receives in a (binomial) tree from the root."""
    place = (rank - root) % size
    return (root + (place & place - 1)) % size


def children(rank: int, root: int, size: int) -> list[int]:
    """Return to which ranks one sends in that tree, the one with most children first."""
    place = (rank - root) % size
    reach = place & -place if place else size
    steps = [1 << k for k in reversed(range(rounds(size)))]
    return [(root + place + s) % size for s in steps if s < reach and place + s < size]


def bytes_of_reduction(array: Array, rank: int, size: int, root: int | None) -> int:
    """Return the bytes that a rank sends when an array is reduced in parts: the other ranks' parts
    of its array, and the reduction of its own part to each rank that wants the result.
    """
    start = array.size * rank // size
    stop = array.size * (rank + 1) // size
    wanted = size - 1 if root is None else int(root != rank)
    return int(array.size + (stop - start) * (wanted - 1)) * int(array.itemsize)


def messages_of_reduction(rank: int, size: int, root: int | None) -> int:
    """Return the messages that a rank sends when an array is reduced in parts, from each rank to
    each.
    """
    return size - 1 + (size - 1 if root is None else int(root != rank))


def reduce_arrays(arrays: list[Array], reduction: str, out: Array | None = None) -> Array:
    """Return the reduction of arrays in the order of the list, in ``out`` if it is given; 16-bit
    floats are reduced in 32 bits.
    """
    first = arrays[0]
    ufunc = UFUNCS[reduction]
    dtype = first.dtype
    if _is_half(dtype):
        return _reduce_halves(arrays, ufunc, out)
    if out is None and not dtype.isnative:  # numpy would give the machine's byte order
        out = np.empty_like(first)
    if len(arrays) == 1:
        total = first.copy()  # it may be a view of the message
    elif out is None:
        total = ufunc(first, arrays[1])
        if isinstance(total, np.generic):  # numpy makes a scalar of 0-d arrays
            total = np.asarray(total)
    else:
        total = ufunc(first, arrays[1], out=out)
    if len(arrays) > 2:
        for array in arrays[2:]:
            ufunc(total, array, out=total)
    return total if out is None or total is out else _into(out, total)


def count_in_halves(nbytes: int, rank: int, size: int, root: int | None) -> tuple[int, int]:
    """Return the messages and bytes that a rank sends in a reduction among many: for all by halves
    and back (:class:`Halving`), for a root along a tree.
    """
    if root is not None:
        return int(rank != root), nbytes * (rank != root)
    return 2 * rounds(size), 2 * nbytes * (size - 1) // size


class Halving(NamedTuple):
    """The ways of a rank in a reduction by halves, and back.

    In each round a rank gives a half of what it has still to reduce to its partner, and reduces the
    other half; then the partners give each other what they have reduced, in the reverse order. It
    takes twice as many messages as the number of ranks has bits, and no more bytes than messages
    from each rank to each. The ranks above the largest power of two give their arrays to another
    rank before, and get the result after. (Thakur, Rabenseifner and Gropp 2005, "Optimization of
    collective communication operations in MPICH".)
    """

    # whose array is added before, -1: nobody's; for a rank above, who adds its array
    spare: int
    is_spare: bool
    ways: list[tuple[int, slice, slice]]  # partner, what is given to it, and what is kept

    @classmethod
    def of(cls, rank: int, ranks: int, length: int) -> Halving:
        """Return the ways of a rank among ``ranks`` with arrays of this length."""
        core = 1 << (ranks.bit_length() - 1)
        if rank >= core:
            return cls(rank - core, True, [])
        ways = []
        start, stop = 0, length
        distance = core // 2
        while distance:
            middle = (start + stop) // 2
            lower, upper = slice(start, middle), slice(middle, stop)
            is_upper = bool(rank & distance)
            ways.append((rank ^ distance, *((lower, upper) if is_upper else (upper, lower))))
            start, stop = (middle, stop) if is_upper else (start, middle)
            distance //= 2
        return cls(rank + core if rank + core < ranks else -1, False, ways)


def scan_arrays(arrays: list[Array], reduction: str, exclusive: bool, up: bool) -> list[Array]:
    """Return for each array the reduction of those up to it (or from it on), with or without it; in
    new memory.
    """
    found = []
    total: Array | None = None
    for array in arrays if up else reversed(arrays):
        before, own = total, widened(array)
        if before is None:
            total = own.copy()
        else:
            total = reduce_arrays([before, own] if up else [own, before], reduction)
        one = before if exclusive else total
        found.append(unit_like(array, reduction) if one is None else narrowed(one, array))
    return found if up else found[::-1]


def unit_like(array: Array, reduction: str) -> Array:
    """Return the reduction of no arrays, in the form of this one."""
    return np.full_like(array, reduction == "prod", subok=False)


def widened(array: Array) -> Array:
    """Return an array in the dtype in which it is reduced: 16-bit floats in 32 bits."""
    return array.astype(np.float32) if _is_half(array.dtype) else array


def narrowed(total: Array, like: Array) -> Array:
    """Return a reduction in the dtype of what was reduced."""
    return total.astype(like.dtype) if _is_half(like.dtype) else total


def _is_half(dtype: Any) -> bool:
    return bool(dtype.itemsize == 2 and dtype.kind in "fV")


def reduce_parts(lists: list[tuple[Array, ...]], reduction: str) -> list[Array]:
    """Return the reduction of the first parts of all lists, of the second ones …; the parts of one
    place have one dtype and shape.
    """
    first = lists[0]
    if len({part.dtype for part in first}) > 1:
        return [reduce_arrays(list(parts), reduction) for parts in zip(*lists, strict=True)]
    total = reduce_arrays(
        [np.concatenate([part.reshape(-1) for part in parts]) for parts in lists], reduction
    )
    ends = itertools.accumulate([part.size for part in first])
    return [
        total[end - part.size : end].reshape(part.shape)
        for part, end in zip(first, ends, strict=True)
    ]


def _reduce_halves(arrays: list[Array], ufunc: Any, out: Array | None) -> Array:
    total = arrays[0].astype(np.float32)
    for array in arrays[1:]:
        ufunc(total, array, out=total)
    return total.astype(arrays[0].dtype) if out is None else _into(out, total)


def _into(out: Array, total: Array) -> Array:
    out[...] = total
    return out
