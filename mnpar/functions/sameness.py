"""Checks that what ranks own together is the same on all of them, and that what they add up or join is not (law 1).

    copy_to, scatter_to        take a value that all ranks hold alike
    reduce_from, gather_from   take parts; what they give has the same gradient on all ranks

Where that is not so – other samples on ranks that share them, other dropout masks, a copy_to or reduce_from too few or too
many, parts along another axis than the one they are joined on – every rank gets a wrong number. It shows nowhere later: a sum
makes the wrong thing equal on all ranks. So it is looked for where the value passes, by a few sums that the ranks tell each
other: in debug mode, and on a mesh in those updates after which gradients are compared (parallel/likeness.py).

On a mesh the loss is one that some of the ranks have in common, which says more: whether the loss itself is the same, whether
a sum should have been one whose result counts once, and whether ranks own something together that have other samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import frexp
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.communicators.algorithms import ALLGATHER
from mnpar.communicators.message import Call
from mnpar.communicators.sites import call_site
from mnpar.config import is_debugging, is_recording
from mnpar.errors import MismatchError
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.backend import Array
    from mnpar.communicators.communicator import Communicator
    from mnpar.functions.communication import Communication


class Watch:
    """An update of a mesh that is looked at.

    Args:
        ranks: those that have samples and a loss in common with this one, by their numbers in the world.
        everyone: all of the mesh.
    """

    def __init__(self, ranks: Sequence[int], everyone: Sequence[int]) -> None:
        self.ranks, self.everyone = frozenset(ranks), frozenset(everyone)
        self.entered: dict[str, Communicator] = {}  # those among whose ranks the work on a value was divided, by where

    def covers(self, comm: Communicator) -> bool:
        """Whether a communicator is of such ranks only."""
        return self.ranks.issuperset(comm.transport.world_ranks)


_watch: ContextVar[Watch | None] = ContextVar("mnpar.watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Look at what ranks own together inside a ``with`` block; all ranks of the mesh do the same."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def _watched(comm: Communicator) -> bool:
    """Whether what passes between its ranks is to be checked; all of them have the same answer."""
    if comm.size == 1:
        return False
    watch = _watch.get()
    return is_debugging() or (watch is not None and watch.covers(comm))


def check_owners(comm: Communicator, op: str, site: str) -> None:
    """Before something is owned together by the ranks of a communicator.

    Raises:
        MismatchError: on a mesh, some have samples of their own; on all ranks.
    """
    watch = _watch.get()
    if watch is not None and not watch.covers(comm) and watch.everyone.issuperset(comm.transport.world_ranks):
        raise MismatchError(f"{op} at {site}: {_APART.format(comm)}")


def enter(comm: Communicator, x: Any) -> None:
    """A value, and no parameter, passes copy_to: from here on these ranks divide the work on it."""
    watch, parameter = _watch.get(), hasattr(x, "update_rule")  # (the class of parameters lies above)
    if watch is not None and is_recording() and comm.size > 1 and watch.covers(comm) and not parameter:
        watch.entered.setdefault(call_site(1), comm)


def check_loss(loss: Any) -> None:
    """On a mesh, ranks that divide the work on a value have one loss in common.

    Raises:
        MismatchError: it is not the same on all of them; on these.
    """
    watch = _watch.get()
    if watch is None or not isinstance(loss, Variable):
        return
    entered, watch.entered = watch.entered, {}
    for site, comm in entered.items():
        _compare(comm, loss.array, "copy_to", site, "the loss that comes after it", _ONE_LOSS, 0)


def check_alike(function: Communication, x: Array | None) -> None:
    """Of a function that takes what all ranks hold alike, or carries the gradient of such a value.

    Raises:
        MismatchError: it differs by more than rounding; on all ranks.
    """
    comm, order = function.comm, function.order
    if not _watched(comm) or not (order or is_recording()):
        return
    what, remedy = ("the gradient of its output", _CONTINUE) if order else ("its input", _ALIKE)
    _compare(comm, x, _NAMES[function.op, order % 2], function.site, what, remedy, order)


def check_same(comm: Communicator, who: str, **given: Any) -> None:
    """As :func:`check_alike`, of what all ranks are called with alike without sending it, such as labels.

    What is no array, or is not there on all ranks, is not looked at.
    """
    if not (is_recording() and _watched(comm)):
        return
    arrays = {name: x.array if isinstance(x, Variable) else x for name, x in given.items()}
    told = comm.allgather_obj({name: _row(x) for name, x in arrays.items() if backend.is_array(x)})
    for name in told[0]:
        if all([name in rows for rows in told]):
            text = f"{who} at {call_site(1)}: its argument {name}"
            _find_difference(comm, [rows[name] for rows in told], text, _ALIKE)


def check_parts(function: Communication, x: Array | None) -> None:
    """Of a function that adds up or joins the ranks' parts, of a value or of a gradient.

    Raises:
        MismatchError: each rank has the same, to the last digit, and not by chance; on all ranks.
    """
    if function.order <= 1 and _watched(function.comm) and (function.order or is_recording()):
        _find_copies(function, x)


def check_once(function: Communication, *xs: Array | None) -> None:
    """Of a sum, of values or of gradients: on a mesh, ranks that have a loss in common have each a part of it.

    Raises:
        MismatchError: each rank has the whole, which would be added up; on all ranks.
    """
    watch, comm = _watch.get(), function.comm
    if comm.size > 1 and watch is not None and watch.covers(comm) and (function.order == 1 or is_recording()):
        _find_copies(function, *xs)


def _find_copies(function: Communication, *xs: Array | None) -> None:
    comm, order = function.comm, function.order
    copies = [
        all([row[3] > 0 and not row[4] and (row == rows[0]).all() for row in rows])
        for rows in [_told(comm, x, function.site, order) for x in xs]
    ]
    if copies and all(copies):
        name, why = _NAMES[function.op, order], _TWICE[function.op, order]
        raise MismatchError(f"{name} at {function.site}: {why.format(P=comm.size)} ({comm!r})")


def _compare(comm: Communicator, x: Array | None, name: str, site: str, what: str, remedy: str, order: int) -> None:
    _find_difference(comm, _told(comm, x, site, order), f"{name} at {site}: {what}", remedy)


def _find_difference(comm: Communicator, rows: Sequence[Array], text: str, remedy: str) -> None:
    first = rows[0]
    for rank, row in enumerate(rows):
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = 7 * min(max(row[5], first[5]) ** 0.5, 0.05) * max(row[2], first[2])
            differ = row[3] != first[3] or (abs(row[:3] - first[:3]) > allowed).any()
        if differ:
            one, other = (f"{r[3]:.0f} numbers, {r[0]:.9g} in all," if r[3] >= 0 else "missing" for r in (first, row))
            raise MismatchError(f"{text} is {one} on rank 0 and {other} on rank {rank} of {comm!r}: {remedy}")


def _told(comm: Communicator, x: Array | None, site: str, order: int) -> tuple[Array, ...]:
    """Every rank's row."""
    rows: tuple[Array, ...] = comm.channel(order).now(ALLGATHER, _row(x), Call("likeness", site, order=order))[0]
    return rows


def _row(x: Array | None) -> Array:
    """What a rank tells of an array: three sums, how many numbers they are of, whether equal ones may be chance, and eps."""
    if x is None:
        return np.array([0.0, 0.0, 0.0, -1.0, 1.0, 0.0])
    xp, flat = backend.get_array_module(x), x.reshape(-1)
    flat = (flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat).astype(np.float64)
    eps = float(np.finfo(x.dtype).eps) if x.dtype.kind in "fc" else 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        sums = [flat.sum(), flat.dot(xp.arange(flat.size) % 13 - 6.0), abs(flat).sum()]
    return np.array([*map(float, sums), float(x.size), float(_plain(x)), eps])


def _plain(x: Array) -> bool:
    """Whether other ranks may have the same array without having computed the same: one of zeros, of ones, of few digits."""
    if x.size < 2:
        return not x.size or (frexp(float(abs(x).sum()))[0] * 2**12).is_integer()
    return any([n > 1 and bool((x == x.take([0], axis)).all()) for axis, n in enumerate(x.shape)])


_NAMES = {
    ("copy_to", 0): "copy_to", ("copy_to", 1): "reduce_from", ("scatter_to", 0): "scatter_to", ("scatter_to", 1): "gather_from",
    ("reduce_from", 0): "reduce_from", ("reduce_from", 1): "copy_to", ("gather_from", 0): "gather_from",
    ("allreduce", 0): "allreduce", ("allreduce", 1): "allreduce", ("reduce_scatter", 1): "allgather",
}  # fmt: skip
_ALIKE = (
    "all ranks of its communicator take the same. Let them have the same samples and random numbers, and add up what are "
    "parts, by reduce_from, before"
)
_CONTINUE = (
    "all ranks continue alike with it. Let them have the same labels and random numbers, and let it pass copy_to or "
    "scatter_to before each does a part of the work with it"
)
_ONE_LOSS = (
    "these ranks divide the work on a value, and so have one loss in common, which counts once. Add up its parts, or what it "
    "is computed from, by reduce_from, or join them by gather_from"
)
_APART = (
    "{!r} has ranks with samples of their own, whose gradients the optimizer adds up; nothing is owned by these together. Take "
    "a communicator of the other axes, such as mesh.model, or one of the functions that differentiate the sum of all ranks' "
    "losses: allreduce, allgather, scatter, bcast"
)
_COUNTS_AGAIN = (
    "each of {P} ranks has the same gradient of its result, which they have in common, so that it would count {P} times: take "
    "{} in its place"
)
_SUMMED_AGAIN = (
    "each of {P} ranks has the same, so that the sum is {P} times what it should be: a value that all ranks have alike is "
    "whole, and not a part"
)
_TWICE = {
    (
        "reduce_from",
        0,
    ): "each of {P} ranks has the same, so that the sum is {P} times what it should be: a value that all ranks "
    "have alike is whole, and not a part",
    ("reduce_from", 1): "each of {P} ranks has the same gradient of its result, so that it would count {P} times: let a value "
    "pass copy_to once, and only where the ranks do different parts of the work with it",
    ("allreduce", 0): _SUMMED_AGAIN,
    ("gather_from", 0): "each of {P} ranks has the same part: cut and join along the same axis of the mesh",
    ("allreduce", 1): _COUNTS_AGAIN.replace("{}", "reduce_from"),
    ("reduce_scatter", 1): _COUNTS_AGAIN.replace("{}", "gather_from"),
}
