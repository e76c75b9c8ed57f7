"""The algorithm of each collective: its result from values that came in the match, or from larger
ones that follow it.

Larger values follow by a collective of the transport. Where each pair of ranks has a part of its
own, and in non-blocking collectives, they follow as messages with headers. A rank may have
*nothing* to give (None): a gradient that does not exist. Reductions leave it out, the other
collectives deliver None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array, as_bytes
from mnpar.communicators import wire
from mnpar.communicators.comparison import CALL
from mnpar.communicators.matching import EMPTY, Match, decode_value
from mnpar.communicators.reduction import reduce_arrays
from mnpar.communicators.waiting import Steps
from mnpar.communicators.wire import NOTHING, SIZE, Call, read_header

if TYPE_CHECKING:
    from mnpar.communicators.channel import Channel
from mnpar.communicators.channel import Algorithm, Given, owned, until_taken

_PIECE = 2**30  # bytes; more than this is sent part by part


# ---- reductions: the result on the root alone, or on all ranks ----


def _reduce_inline(match: Match, x: Any) -> Array | None:
    if not (match.has_result and match.arrays):
        return None
    if match.is_shared and match.found and match.reusable:
        return match.total()
    if match.reusable:
        return reduce_arrays(match.arrays, match.call.reduction)
    return _reduce_on_host(match.arrays, match.call)


def _reduce_on_host(arrays: list[Array], call: Call) -> Array:
    """Return the reduction of arrays on any devices, where the first of them is."""
    return backend.to_device_of(
        reduce_arrays([backend.to_host(array) for array in arrays], call.reduction), arrays[0]
    )


def _reduce_transfer(
    channel: Channel, match: Match, x: Any, out: Array | None = None
) -> Steps[Array | None]:
    root = match.call.root if match.call.op == "reduce" else None
    if match.uniform and type(x) is np.ndarray:  # the common case, without a detour
        total = yield from channel.reduce_large(x, match, root, out)
        return total if match.has_result else None
    form = next(header for header in match.forms if header.kind != NOTHING)
    if x is None:
        x = np.full(form.shape, 1 if match.call.reduction == "prod" else 0, form.dtype)
    total = yield from channel.reduce_large(backend.to_host(x), match, root, out)
    if not match.has_result:
        return None
    return backend.to_current_gpu(total) if form.flags & wire.ON_DEVICE else total


def allreduce_into(out: Array) -> Algorithm:
    """Return an allreduce that computes its result into ``out``, where that can be done: a
    contiguous array like its argument, or that itself.
    """
    return Algorithm(
        _reduce_inline, lambda channel, match, x: _reduce_transfer(channel, match, x, out)
    )


# ---- every rank's value ----


def _gather_inline(match: Match, x: Any) -> tuple[Any, ...] | None:
    if not match.has_result:
        return None
    if match.reusable:
        return tuple([None if array is None else array.copy() for array in match.given])
    return tuple([match.copy_of(rank) for rank in range(match.size)])


def _allgather_transfer(channel: Channel, match: Match, x: Any) -> Steps[tuple[Any, ...]]:
    counts = [header.nbytes for header in match.forms]
    if match.call.later or sum(counts) > _PIECE:
        return (yield from channel.exchange_parts([x] * match.size, match))
    joined = yield from channel.allgather_bytes(_body(x, match), counts, match)
    values, start = [], 0
    for header in match.forms:
        part = joined[start : start + header.nbytes]
        start += header.nbytes
        values.append(decode_value(part, header))
    return tuple(values)


def _gather_transfer(channel: Channel, match: Match, x: Any) -> Steps[tuple[Any, ...] | None]:
    if match.has_result:
        return tuple((yield from channel.recv_parts(match, owned(x))))
    yield from until_taken([channel.send_part(x, match, match.call.root)])
    return None


def _scan(exclusive: bool, up: bool) -> Algorithm:
    """Return the algorithm of a reduction of the ranks up to this one (or from it on), with or
    without its own value.
    """

    def scanned(parts: Any, match: Match) -> Array | None:
        me = match.me
        some = parts[: me + (not exclusive)] if up else parts[me + exclusive :]
        given = [part for part in some if part is not None]
        if given:
            return reduce_arrays(given, match.call.reduction)
        like = next((part for part in parts if part is not None), None)
        return None if like is None else np.full_like(like, match.call.reduction == "prod")

    def outside(channel: Channel, match: Match, x: Any) -> Steps[Array | None]:
        if match.agreed and not match.forms[0].flags & wire.ON_DEVICE:
            return (yield from channel.scan(np.asarray(x), match, exclusive, up))
        return scanned((yield from _allgather_transfer(channel, match, x)), match)

    return Algorithm(lambda match, x: scanned(match.given, match), outside)


# ---- the root's value ----


def _at_root(channel: Channel, x: Any, call: Call) -> Given:
    return (x if channel.transport.rank == call.root else None), None


def _bcast_inline(match: Match, x: Any) -> Any:
    return x if match.me == match.call.root else match.copy_of(match.call.root)


def _bcast_transfer(channel: Channel, match: Match, x: Any) -> Steps[Any]:
    root = match.call.root
    at_root = match.me == root
    if match.call.later:
        return (yield from channel.pass_on(x, match))
    body = _body(x, match) if at_root else EMPTY
    if match.forms:
        header = match.forms[root]
    else:  # only the root knows it
        block = yield from channel.bcast_block(body, match)
        header = read_header(block)
        if header.nbytes <= len(block) - SIZE:
            return x if at_root else decode_value(block[SIZE : SIZE + header.nbytes], header)
    if not at_root:
        body = np.empty(header.nbytes, np.uint8)
    yield from channel.bcast_bytes(body, match)
    return x if at_root else decode_value(body, header)


def _parts_at_root(channel: Channel, xs: Any, call: Call) -> Given:
    return (
        (listed(xs), channel.transport.size)
        if channel.transport.rank == call.root
        else (None, None)
    )


def _scatter_inline(match: Match, xs: Any) -> Any:
    return match.copy_of(match.call.root)


def _scatter_transfer(channel: Channel, match: Match, xs: Any) -> Steps[Any]:
    root = match.call.root
    if match.me != root:
        return (yield from channel.recv_part(match, root))
    given = [channel.send_part(xs[rank], match, rank) for rank in channel.others()]
    own = owned(xs[root])
    yield from until_taken(given)
    return own


# ---- each rank's parts for each ----


def _parts(channel: Channel, xs: Any, call: Call) -> Given:
    return listed(xs), channel.transport.size


def _alltoall_transfer(channel: Channel, match: Match, xs: Any) -> Steps[tuple[Any, ...]]:
    return (yield from channel.exchange_parts(xs, match))


def _reduce_scatter_transfer(channel: Channel, match: Match, xs: Any) -> Steps[Array | None]:
    if channel.transport.in_one_process:
        totals = yield from channel.reduce_parts_together(xs, match)
        if totals:
            return totals[match.me]
    parts = yield from channel.exchange_parts(xs, match, own=lambda x: x)
    given = [part for part in parts if part is not None]
    return _reduce_on_host(given, match.call) if given else None


def _nothing(match: Match, x: Any) -> None:
    """Return the result of a barrier: the match itself is all of it."""


BARRIER = Algorithm(_nothing, _allgather_transfer)  # nothing always comes with the calls
ALLREDUCE = Algorithm(_reduce_inline, _reduce_transfer)  # and reduce: the call tells which
ALLGATHER = Algorithm(_gather_inline, _allgather_transfer, gathers=True)
GATHER = Algorithm(_gather_inline, _gather_transfer, needs=CALL)
BCAST = Algorithm(_bcast_inline, _bcast_transfer, _at_root, needs=CALL)
SCATTER = Algorithm(_scatter_inline, _scatter_transfer, _parts_at_root, needs=CALL)
ALLTOALL = Algorithm(_gather_inline, _alltoall_transfer, _parts, needs=CALL)
REDUCE_SCATTER = Algorithm(_reduce_inline, _reduce_scatter_transfer, _parts)

SCANS = {
    (exclusive, up): _scan(exclusive, up) for exclusive in (False, True) for up in (False, True)
}


def listed(xs: Any) -> Any:
    """Return one part for each rank, as a tuple; an array is cut along its first axis.
    ``describe_value`` refuses what has no parts.
    """
    if type(xs) is tuple:
        return xs
    if backend.is_array(xs):
        return tuple([xs[i, ...] for i in range(len(xs))]) if xs.ndim else xs
    return tuple(xs) if isinstance(xs, Iterable) else xs


def _body(x: Any, match: Match) -> Array:
    """Return this rank's own value as bytes. The record has none of an array whose form the buffer
    knows.
    """
    return (
        as_bytes(x)
        if type(x) is np.ndarray and not match.call.op.endswith("_obj")
        else match.record.body
    )
