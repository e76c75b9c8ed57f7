"""Checks that values which all ranks hold alike and own together are the same on each (law 1).

    copy_to, scatter_to        take such a value
    reduce_from, gather_from   have such a gradient

Other samples on ranks that share samples, other dropout masks, a missing or superfluous copy_to or
reduce_from: each gives every rank a wrong number, which shows nowhere later, because sums make the
wrong values equal on all ranks. So the ranks compare fingerprints where the value passes.

An error stops a run, so checks let pass what may be meant: losses that differ (they add up:
penalties of divided weights, a task for each rank), and values that nothing is differentiated
through.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from mnpar import backend
from mnpar.checks.fingerprint import Fingerprint, fingerprint
from mnpar.communicators.collectives import ALLGATHER
from mnpar.communicators.wire import Call
from mnpar.configuration import is_debugging, is_recording
from mnpar.errors import MismatchError
from mnpar.runtime.callsite import call_site
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.backend import Array
    from mnpar.checks.mesh_update import MeshUpdate
    from mnpar.communicators.communicator import Communicator
    from mnpar.functions.communication.base import Communication
    from mnpar.parameter import Parameter


def is_checked(update: MeshUpdate | None, comm: Communicator) -> bool:
    """Return whether values that ranks of a communicator own together are checked.

    All of its ranks get the same answer.
    """
    return comm.size > 1 and (
        is_debugging() or (update is not None and update.shares_samples(comm))
    )


def check_copies(update: MeshUpdate | None, function: Communication, x: Array | None) -> None:
    """Check that all ranks give a function the same value or gradient; before its forward.

    Raises:
        MismatchError: the values differ by more than rounding; on a mesh, some ranks have samples
            of their own; on all ranks.
    """
    comm = function.comm
    order = function.order
    matters = x is not None if order else function.differentiable
    if matters and update is not None and update.mixes_samples(comm):
        raise MismatchError(f"{name_of(function)} at {function.site}: {_APART.format(comm)}")
    if is_checked(update, comm) and (order or is_recording()):
        what, remedy = ("the gradient of its output", _CONTINUE) if order else ("its input", _ALIKE)
        found = [Fingerprint(*row) for row in exchange(function, np.array(fingerprint(x)))]
        _require_close(comm, found, f"{name_of(function)} at {function.site}: {what}", remedy)


_taken: WeakKeyDictionary[Communicator, int] = WeakKeyDictionary()  # copies, by communicator
_FIRST = 16  # of a communicator's copies are compared
_ONE_IN = 31  # and then one of so many


def describe_copies(function: Communication, x: Array | None) -> Array | None:
    """Return the fingerprint of what ``copy_to`` takes where nothing else checks communications,
    for the first uses of a communicator, and some later ones; None for the others.
    """
    if function.comm.size == 1:
        return None
    uses = _taken[function.comm] = _taken.get(function.comm, 0) + 1
    # chosen by a checksum: at equal distances, a program that takes 31 copies in each step would
    # always compare the same one
    if uses > _FIRST and zlib.crc32(uses.to_bytes(8, "little")) % _ONE_IN:
        return None
    return np.array([*fingerprint(x), 0.0])


def compare_copies(function: Communication, adjoint: Communication, mine: Array) -> None:
    """Check, in backward, that all ranks have given ``copy_to`` the same values, if they depend on
    Parameters on all ranks: copies of these have drifted apart, else.

    Raises:
        MismatchError: the values differ by more than rounding; on all ranks.
    """
    param = _parameter_behind(function)
    mine[-1] = param is not None
    rows = exchange(adjoint, mine)
    if param is None or not all([row[-1] for row in rows]):
        return
    name = f"{param.name or 'a Parameter'} {param.shape}"
    text = f"{name_of(function)} at {function.site}: its input, which depends on {name},"
    _require_close(function.comm, [Fingerprint(*row[:-1]) for row in rows], text, _DRIFTED)


def _parameter_behind(function: Communication) -> Parameter | None:
    """Return the nearest Parameter on which a function's input depends, by what this rank has
    computed itself.
    """
    nodes, seen = deque(function.inputs), set()
    while nodes:
        node = nodes.popleft()
        param = getattr(node, "parameter", None)
        if param is not None:
            found: Parameter | None = param()
            return found
        creator = node.creator
        if creator is not None and creator.number not in seen:
            seen.add(creator.number)
            nodes.extend([x for x in creator.inputs if x.requires_grad])
    return None


def check_arguments(
    update: MeshUpdate | None, comm: Communicator, who: str, given: Mapping[str, Any]
) -> None:
    """Check that all ranks call ``who`` with the same arrays, by names, which are not sent.

    An argument that is no array of numbers, or zeros only, or missing on a rank, is not compared:
    that rank may not need it.

    Raises:
        MismatchError: an argument differs by more than rounding; on all ranks.
    """
    if not (is_recording() and is_checked(update, comm)):
        return
    arrays = {name: x.array if isinstance(x, Variable) else x for name, x in given.items()}
    numbers = {
        name: x for name, x in arrays.items() if backend.is_array(x) and x.dtype.kind not in "OSU"
    }
    found = comm.allgather_obj({name: fingerprint(x) for name, x in numbers.items() if x.any()})
    for name in found[0]:
        if all([name in prints for prints in found]):
            text = f"{who} at {call_site(1)}: its argument {name}"
            _require_close(comm, [prints[name] for prints in found], text, _ALIKE)


def _require_close(
    comm: Communicator, prints: Sequence[Fingerprint], text: str, remedy: str
) -> None:
    for rank, found in enumerate(prints):
        if found.differs_from(prints[0]):
            raise MismatchError(
                f"{text} is {prints[0]} on rank 0 and {found} on rank {rank} of {comm!r}: {remedy}"
            )


def exchange(function: Communication, mine: Array) -> tuple[Array, ...]:
    """Return what every rank of a function's communicator gives here."""
    rows: tuple[Array, ...] = function.comm.channel(function.order).now(
        ALLGATHER, mine, call_of_check(function)
    )[0]
    return rows


def call_of_check(function: Communication, later: bool = False) -> Call:
    """Return the header of a check's messages; ``later``: for a function that is awaited later."""
    return Call("likeness", function.site, order=function.order, later=later)


def name_of(function: Communication) -> str:
    """Return the name of the function that the user called."""
    return _ADJOINTS[function.op] if function.order % 2 else function.op


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
    "numbers, and add up what are parts, by reduce_from, before"
)

_DRIFTED = (
    "copies must be the same on all ranks of its communicator. Let them begin alike "
    "(mnpar.random.seed, comm.bcast_data(model)), and let all ranks call cleargrads, backward and "
    "update equally often, in one order, with the same hooks and hyperparameters; samples and "
    "random numbers that it depends on must be the same, too"
)

_CONTINUE = (
    "all ranks continue alike with it. Let them have the same labels and random numbers, and let "
    "it pass copy_to or scatter_to before each does a part of the work with it"
)

_APART = (
    "{!r} has ranks with samples of their own, whose gradients the optimizer adds up; nothing is "
    "owned by these together. Take a communicator of the other axes, such as mesh.model, or one of "
    "the functions that differentiate the sum of all ranks' losses: allreduce, allgather, scatter, "
    "bcast"
)
