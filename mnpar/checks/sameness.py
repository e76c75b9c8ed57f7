"""Checks that what ranks own together is the same on all of them, and that what they add up or join
is not (law 1).

    copy_to, scatter_to        take a value that all ranks hold alike
    reduce_from, gather_from   take parts; what they give has the same gradient on all ranks

Where that is not so – other samples on ranks that share them, other dropout masks, a copy_to or
reduce_from too few or too many, parts along another axis than the one they are joined on – every
rank gets a wrong number. It shows nowhere later: a sum makes the wrong thing equal on all ranks. So
it is looked for where the value passes, by a few sums that the ranks tell each other: in debug
mode, and on a mesh in those updates after which gradients are compared (parallel/data/consistency.py).

On a mesh the loss is one that some of the ranks have in common, which says more: whether ranks own
something together that have other samples, and what should count once (checks/counting.py).

An error stops a run, so what may be meant is let pass: losses that differ (they add up: penalties
of divided weights, a task for each rank), sums that nothing is differentiated through, equal parts
that are plain, a number whose gradient is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import frexp
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.communicators.collectives import ALLGATHER
from mnpar.communicators.wire import Call
from mnpar.configuration import is_debugging, is_recording
from mnpar.errors import MismatchError
from mnpar.runtime.callsite import call_site
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.backend import Array
    from mnpar.communicators.communicator import Communicator
    from mnpar.functions.communication.base import Communication


class Watch:
    """An update of a mesh that is looked at.

    Args:
        ranks: those that have samples and a loss in common with this one, by their numbers in the
            world.
        everyone: all of the mesh.
        model: the link that is updated.
    """

    def __init__(self, ranks: Sequence[int], everyone: Sequence[int], model: Any) -> None:
        self.ranks = frozenset(ranks)
        self.everyone = frozenset(everyone)
        self.model = model

    def covers(self, comm: Communicator) -> bool:
        """Whether a communicator is of such ranks only."""
        return self.ranks.issuperset(comm.transport.world_ranks)

    def divides(self, comm: Communicator) -> bool:
        """Whether a communicator is of the mesh, and has ranks with other samples."""
        return not self.covers(comm) and self.everyone.issuperset(comm.transport.world_ranks)

    def has_behind(self, function: Communication) -> bool:
        """Whether a parameter of the model is behind what a rank gives: gradients of data are
        nobody's update.

        What has come from another rank may be computed from one there.
        """
        params = {param.node for param in self.model.params(include_uninit=False)}
        nodes = [*function.inputs]
        seen = set()
        while nodes:
            node = nodes.pop()
            if node in params:
                return True
            if node.creator is not None and node.creator.number not in seen:
                seen.add(node.creator.number)
                if node.creator.communicates and not node.creator.inputs:
                    return True
                nodes += [
                    x for x in (*node.creator.inputs, *node.creator.extra_inputs) if x.requires_grad
                ]
        return False


_watch: ContextVar[Watch | None] = ContextVar("mnpar.watch", default=None)
current_watch = _watch.get


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Look at what ranks own together inside a ``with`` block; all ranks of the mesh do the
    same.
    """
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


_cut: ContextVar[bool] = ContextVar("mnpar.cut", default=False)


@contextmanager
def cut_graph() -> Iterator[None]:
    """Inside a ``with`` block a backward ends at leaves that stand for what was computed elsewhere,
    as those of forget do.
    """
    token = _cut.set(True)
    try:
        yield
    finally:
        _cut.reset(token)


def watched(comm: Communicator) -> bool:
    """Whether what passes between its ranks is to be checked; all of them have the same answer."""
    watch = current_watch()
    return comm.size > 1 and (is_debugging() or (watch is not None and watch.covers(comm)))


def check_alike(function: Communication, x: Array | None) -> None:
    """Of a function that takes what all ranks hold alike, or carries the gradient of such a value;
    before its forward.

    Raises:
        MismatchError: it differs by more than rounding; on a mesh, some ranks have samples of their
            own; on all ranks.
    """
    comm = function.comm
    order = function.order
    watch = current_watch()
    if (
        watch is not None
        and (x is not None if order else function.differentiable)
        and watch.divides(comm)
    ):
        raise MismatchError(f"{_name(function)} at {function.site}: {_APART.format(comm)}")
    if watched(comm) and (order or is_recording()):
        what, remedy = ("the gradient of its output", _CONTINUE) if order else ("its input", _ALIKE)
        _find_difference(
            comm, told(function, row_of(x)), f"{_name(function)} at {function.site}: {what}", remedy
        )


def check_same(comm: Communicator, who: str, given: Mapping[str, Any]) -> None:
    """As :func:`check_alike`, of what all ranks are called with alike without sending it, such as
    labels, by names.

    What is no array of numbers, or zeros only, or not there on all ranks, is not looked at: a rank
    may not need it.
    """
    if not (is_recording() and watched(comm)):
        return
    arrays = {name: x.array if isinstance(x, Variable) else x for name, x in given.items()}
    numbers = {
        name: x for name, x in arrays.items() if backend.is_array(x) and x.dtype.kind not in "OSU"
    }
    found = comm.allgather_obj({name: row_of(x) for name, x in numbers.items() if x.any()})
    for name in found[0]:
        if all([name in rows for rows in found]):
            text = f"{who} at {call_site(1)}: its argument {name}"
            _find_difference(comm, [rows[name] for rows in found], text, _ALIKE)


def check_parts(function: Communication, x: Array | None) -> None:
    """Of a function that adds up or joins the ranks' parts, of a value that a gradient is wanted
    of, or of a gradient.

    Raises:
        MismatchError: each rank has the same, to the last digit, and not by chance; on all ranks.
    """
    if not (is_first(function) and watched(function.comm)):
        return
    rows = told(function, np.append(row_of(x), function.alike or not updates(function)))
    # (a number may be so by chance)
    if (
        alike_on_all(rows)
        and not any([row[-1] for row in rows])
        and (rows[0][3] > 1 if function.order else function.differentiable)
    ):
        raise MismatchError(counted_twice(function))


def check_blocks(comm: Communicator, who: str, what: str, x: Variable) -> None:
    """Of blocks that ranks have of an array, of which a gradient is wanted: that none has the whole
    of it in place of a block.

    Raises:
        MismatchError: each rank has the same, to the last digit, and not by chance; on all ranks.
    """
    if is_recording() and watched(comm):
        rows = comm.allgather(np.append(row_of(x.array), x.node.requires_grad))
        if alike_on_all(rows) and all([row[-1] for row in rows]):
            raise MismatchError(
                f"{who} at {call_site(1)}: {_WHOLE.format(P=comm.size, what=what)} ({comm!r})"
            )


def is_first(function: Communication) -> bool:
    """Whether it carries a value that gradients may be wanted of, or a gradient; not a gradient's
    gradient.
    """
    return function.order == 1 or (function.order == 0 and is_recording())


def updates(function: Communication) -> bool:
    """Whether a gradient may go to a parameter that is updated; where nobody knows, True."""
    watch = current_watch()
    if watch is None or function.of is None or _cut.get():
        return True
    return watch.has_behind(function.of)


def alike_on_all(rows: Sequence[Array]) -> bool:
    """Whether all ranks have the same, to the last digit, and not by chance."""
    return all([row[3] > 0 and not row[4] and (row == rows[0]).all() for row in rows])


def _find_difference(comm: Communicator, rows: Sequence[Array], text: str, remedy: str) -> None:
    first = rows[0]
    for rank, row in enumerate(rows):
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = 7 * min(max(row[5], first[5]) ** 0.5, 0.05) * max(row[2], first[2])
            differ = row[3] != first[3] or (abs(row[:3] - first[:3]) > allowed).any()
        if differ:
            one, other = (
                f"{r[3]:.0f} numbers, {r[0]:.9g} in all," if r[3] >= 0 else "missing"
                for r in (first, row)
            )
            raise MismatchError(
                f"{text} is {one} on rank 0 and {other} on rank {rank} of {comm!r}: {remedy}"
            )


def told(function: Communication, mine: Array) -> tuple[Array, ...]:
    """What every rank tells."""
    rows: tuple[Array, ...] = function.comm.channel(function.order).now(
        ALLGATHER, mine, question(function)
    )[0]
    return rows


def question(function: Communication, later: bool = False) -> Call:
    """How ranks ask each other; ``later``: about what they wait for later."""
    return Call("likeness", function.site, order=function.order, later=later)


def row_of(x: Array | None) -> Array:
    """What a rank tells of an array: three sums, how many numbers they are of, whether equal ones
    may be chance, and eps.
    """
    if x is None:
        return np.array([0.0, 0.0, 0.0, -1.0, 1.0, 0.0])
    xp = backend.get_array_module(x)
    flat = x.reshape(-1)
    flat = (flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat).astype(np.float64)
    # (bfloat16)
    eps = (
        float(np.finfo(x.dtype).eps)
        if x.dtype.kind in "fc"
        else 0.0
        if x.dtype.kind in "biu"
        else 2.0**-7
    )
    with np.errstate(invalid="ignore", over="ignore"):
        sums = [flat.sum(), flat.dot(xp.arange(flat.size) % 13 - 6.0), abs(flat).sum()]
    return np.array([*map(float, sums), float(x.size), float(_plain(x, float(sums[2]))), eps])


def _plain(x: Array, total: float) -> bool:
    """Whether other ranks may have the same array without having computed the same: one of zeros,
    of ones, of few digits.
    """
    few = (frexp(total)[0] * 2**12).is_integer()
    return few or any(
        [n > 1 and bool((x == x.take([0], axis)).all()) for axis, n in enumerate(x.shape)]
    )


def _name(function: Communication) -> str:
    """Of the function that the user called."""
    return _ADJOINTS[function.op] if function.order % 2 else function.op


def counted_twice(function: Communication) -> str:
    """What is wrong if each rank has the same."""
    name, comm = _name(function), function.comm
    why = TWICE[name, function.order].format(P=comm.size)
    return f"{name} at {function.site}: each of {comm.size} ranks has the same{why} ({comm!r})"


_ADJOINTS = {
    "copy_to": "reduce_from",
    "reduce_from": "copy_to",
    "scatter_to": "gather_from",
    "gather_from": "scatter_to",
    "allreduce": "allreduce",
    "reduce_scatter": "allgather",
    "reduce": "bcast",
}

_ALIKE = (
    "all ranks of its communicator take the same. Let them have the same samples and random "
    "numbers, and add up what are "
    "parts, by reduce_from, before"
)

_CONTINUE = (
    "all ranks continue alike with it. Let them have the same labels and random numbers, and "
    "let it pass copy_to or "
    "scatter_to before each does a part of the work with it"
)

_APART = (
    "{!r} has ranks with samples of their own, whose gradients the optimizer adds up; nothing "
    "is owned by these together. Take "
    "a communicator of the other axes, such as mesh.model, or one of the functions that "
    "differentiate the sum of all ranks' "
    "losses: allreduce, allgather, scatter, bcast"
)

_COUNTS_AGAIN = (
    " gradient of its result, which they have in common, so that it would count {{P}} times: "
    "take {} in its place"
)

TWICE = {
    (
        "reduce_from",
        0,
    ): ", so that the sum is {P} times what it should be: a value that all ranks have alike is "
    "whole, and not "
    "a part",
    ("gather_from", 0): " part: cut and join along the same axis of the mesh",
    (
        "copy_to",
        1,
    ): " gradient of its result, so that it would count {P} times: let a value pass copy_to "
    "once, and only where "
    "the ranks do different parts of the work with it",
    ("allreduce", 1): _COUNTS_AGAIN.format("reduce_from, and for a mean divide what it gives,"),
    ("allgather", 1): _COUNTS_AGAIN.format("gather_from"),
    ("bcast", 1): _COUNTS_AGAIN.format(
        "what each can compute by itself, or let one rank alone have the loss,"
    ),
}

_WHOLE = (
    "each of {P} ranks has the same {what}, and not a block of them: take them as they are "
    "before they are gathered, such as "
    "with ColumnParallelLinear(…, gather_output=False)"
)
