"""How each collective gets its result: from values that came in the opening, or from larger ones
that follow it.

Larger values follow by a collective of the transport, or as messages with headers: where each pair
of ranks has a part of its own, and in non-blocking collectives. A rank may have *nothing* to give
(None): a gradient that does not exist. Reductions leave it out, the other collectives deliver None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, as_bytes
from mnpar.communicators import wire
from mnpar.communicators.matching import Opening, value_of
from mnpar.communicators.reduction import reduce_arrays
from mnpar.communicators.waiting import Steps
from mnpar.communicators.wire import NOTHING, Call

if TYPE_CHECKING:
    from mnpar.communicators.channel import Channel
from mnpar.communicators.channel import Algorithm, Given, owned, until_taken

_PIECE = 2**30  # bytes; more than this is sent part by part


# ---- reductions: the result on the root alone, or on all ranks ----


def _reduced(opening: Opening, x: Any) -> Array | None:
    if not (opening.here and opening.arrays):
        return None
    if opening.lasting:
        return reduce_arrays(opening.arrays, opening.call.reduction)
    return _reduced_on_host(opening.arrays, opening.call)


def _reduced_on_host(arrays: list[Array], call: Call) -> Array:
    """The reduction of arrays on any devices, where the first of them is."""
    return backend.to_device_of(
        reduce_arrays([backend.to_host(array) for array in arrays], call.reduction), arrays[0]
    )


def _reduced_outside(
    channel: Channel, opening: Opening, x: Any, out: Array | None = None
) -> Steps[Array | None]:
    root = opening.call.root if opening.call.op == "reduce" else None
    if opening.alike and type(x) is np.ndarray:  # the common case, without a detour
        total = yield from channel.reduced_apart(x, opening, root, out)
        return total if opening.here else None
    form = next(header for header in opening.forms if header.kind != NOTHING)
    if x is None:
        x = np.full(form.shape, 1 if opening.call.reduction == "prod" else 0, form.dtype)
    total = yield from channel.reduced_apart(backend.to_host(x), opening, root, out)
    if not opening.here:
        return None
    return backend.to_current_gpu(total) if form.flags & wire.ON_DEVICE else total


def allreduce_into(out: Array) -> Algorithm:
    """An allreduce whose result is computed into a contiguous array like ``x``, or ``x`` itself,
    where that can be done.
    """
    return Algorithm(
        _reduced, lambda channel, opening, x: _reduced_outside(channel, opening, x, out)
    )


# ---- every rank's value ----


def _gathered(opening: Opening, x: Any) -> tuple[Any, ...] | None:
    if not opening.here:
        return None
    if opening.lasting:
        return tuple([None if array is None else array.copy() for array in opening.given])
    return tuple([opening.own(rank) for rank in range(opening.size)])


def _allgathered_outside(channel: Channel, opening: Opening, x: Any) -> Steps[tuple[Any, ...]]:
    counts = [header.nbytes for header in opening.forms]
    if opening.call.later or sum(counts) > _PIECE:
        return (yield from channel.traded([x] * opening.size, opening))
    joined = yield from channel.joined(_body(x, opening), counts, opening)
    values, start = [], 0
    for header in opening.forms:
        part = joined[start : start + header.nbytes]
        start += header.nbytes
        values.append(value_of(part, header))
    return tuple(values)


def _gathered_outside(channel: Channel, opening: Opening, x: Any) -> Steps[tuple[Any, ...] | None]:
    if opening.here:
        return tuple((yield from channel.fetched(opening, owned(x))))
    yield from until_taken([channel.post_part(x, opening, opening.call.root)])
    return None


def _scan(exclusive: bool, up: bool) -> Algorithm:
    """The reduction of the ranks up to this one (or from it on), with or without its own."""

    def scanned(parts: Any, opening: Opening) -> Array | None:
        me = opening.me
        some = parts[: me + (not exclusive)] if up else parts[me + exclusive :]
        given = [part for part in some if part is not None]
        if given:
            return reduce_arrays(given, opening.call.reduction)
        like = next((part for part in parts if part is not None), None)
        return None if like is None else np.full_like(like, opening.call.reduction == "prod")

    def outside(channel: Channel, opening: Opening, x: Any) -> Steps[Array | None]:
        return scanned((yield from _allgathered_outside(channel, opening, x)), opening)

    return Algorithm(lambda opening, x: scanned(opening.given, opening), outside)


# ---- the root's value ----


def _at_root(channel: Channel, x: Any, call: Call) -> Given:
    return (x if channel.transport.rank == call.root else None), None


def _broadcast(opening: Opening, x: Any) -> Any:
    return x if opening.me == opening.call.root else opening.own(opening.call.root)


def _broadcast_outside(channel: Channel, opening: Opening, x: Any) -> Steps[Any]:
    root = opening.call.root
    at_root = opening.me == root
    header = opening.forms[root]
    if opening.call.later:
        for rank in channel.others() if at_root else ():
            channel.post_part(x, opening, rank)
        return x if at_root else (yield from channel.fetched_part(opening, root))
    body = _body(x, opening) if at_root else np.empty(header.nbytes, np.uint8)
    yield from channel.spread(body, opening)
    return x if at_root else value_of(body, header)


def _parts_at_root(channel: Channel, xs: Any, call: Call) -> Given:
    return (
        (listed(xs), channel.transport.size)
        if channel.transport.rank == call.root
        else (None, None)
    )


def _part_of_root(opening: Opening, xs: Any) -> Any:
    return opening.own(opening.call.root)


def _scattered_outside(channel: Channel, opening: Opening, xs: Any) -> Steps[Any]:
    root = opening.call.root
    if opening.me != root:
        return (yield from channel.fetched_part(opening, root))
    given = [channel.post_part(xs[rank], opening, rank) for rank in channel.others()]
    own = owned(xs[root])
    yield from until_taken(given)
    return own


# ---- each rank's parts for each ----


def _parts(channel: Channel, xs: Any, call: Call) -> Given:
    return listed(xs), channel.transport.size


def _traded_outside(channel: Channel, opening: Opening, xs: Any) -> Steps[tuple[Any, ...]]:
    return (yield from channel.traded(xs, opening))


def _reduced_parts_outside(channel: Channel, opening: Opening, xs: Any) -> Steps[Array | None]:
    parts = yield from channel.traded(xs, opening, own=lambda x: x)
    given = [part for part in parts if part is not None]
    return _reduced_on_host(given, opening.call) if given else None


ALLREDUCE = Algorithm(_reduced, _reduced_outside)  # and reduce: the call's operation tells which
ALLGATHER = Algorithm(_gathered, _allgathered_outside)
GATHER = Algorithm(_gathered, _gathered_outside)
BCAST = Algorithm(_broadcast, _broadcast_outside, _at_root)
SCATTER = Algorithm(_part_of_root, _scattered_outside, _parts_at_root)
ALLTOALL = Algorithm(_gathered, _traded_outside, _parts)
REDUCE_SCATTER = Algorithm(_reduced, _reduced_parts_outside, _parts)

SCANS = {
    (exclusive, up): _scan(exclusive, up) for exclusive in (False, True) for up in (False, True)
}


def listed(xs: Any) -> Any:
    """One part for each rank, as a tuple; an array is cut along its first axis. ``form_of`` refuses
    what has no parts.
    """
    if type(xs) is tuple:
        return xs
    if backend.is_array(xs):
        return tuple([xs[i, ...] for i in range(len(xs))]) if xs.ndim else xs
    return tuple(xs) if isinstance(xs, Iterable) else xs


def _body(x: Any, opening: Opening) -> Array:
    """This rank's own value as bytes; of an array whose form the buffer knows they are made only
    here.
    """
    return (
        as_bytes(x)
        if type(x) is np.ndarray and not opening.call.op.endswith("_obj")
        else opening.statement.body
    )
