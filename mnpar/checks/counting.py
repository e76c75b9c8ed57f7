"""Checks, in those updates of a mesh that are looked at, that what counts once is not counted for
each rank (law 1).

    allreduce, allgather, bcast    sum up all ranks' gradients: the same one on ranks that have a
                                   loss in common counts P times
    reduce_from, reduce_scatter    add up parts: a parameter that all ranks have alike, added to
                                   each part, is there P times

The gradient of the loss is then P times, or a P-th of, what it should be, on all ranks alike, so
that nothing else shows it. Functions that are waited for later ask, and judge when they are waited
for: a check may never wait where they do not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.checks.sameness import (
    TWICE,
    alike_on_all,
    counted_twice,
    current_watch,
    is_first,
    row_of,
    told,
    updates,
    watched,
)
from mnpar.configuration import is_debugging, is_recording
from mnpar.errors import MismatchError
from mnpar.functions.array.broadcast import BroadcastTo
from mnpar.functions.array.shape import Cast, Reshape
from mnpar.functions.communication.base import Communication
from mnpar.functions.connection.convolution import Convolution
from mnpar.functions.connection.linear import Linear
from mnpar.functions.math.arithmetic import (
    Add,
    AddConstant,
    AddSeveral,
    Div,
    Mul,
    MulConstant,
    Neg,
    PowConstant,
)
from mnpar.functions.math.reduction import Mean, Sum
from mnpar.runtime.callsite import call_site
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.autograd.graph import VariableNode
    from mnpar.backend import Array
    from mnpar.communicators.communicator import Communicator


_SUMS = (Add, AddSeveral)
_EACH = ("allreduce", "allgather", "bcast")

# of one that varies
_ALONE = (
    AddConstant,
    Neg,
    Mul,
    MulConstant,
    Div,
    PowConstant,
    Sum,
    Mean,
    BroadcastTo,
    Reshape,
    Cast,
)


def asks_in(comm: Communicator) -> bool:
    """Whether the ranks of a communicator ask each other now; all of them have the same answer."""
    watch = current_watch()
    return watch is not None and comm.size > 1 and watch.covers(comm)


def ask_once(function: Communication, *xs: Array | None) -> Array | None:
    """What a rank tells before a sum or mean, of values or of gradients, for :func:`check_once`;
    None if nothing is asked.
    """
    asks = (
        function.asks_from <= function.order
        and not function.alike
        and is_first(function)
        and asks_in(function.comm)
    )
    return np.array([[*row_of(x), updates(function)] for x in xs]) if asks else None


def judge_once(function: Communication, told: Sequence[Array]) -> None:
    """The second half of :func:`check_once`, by what :func:`ask_once` gave on each rank."""
    copies = all(
        [alike_on_all(rows) for rows in zip(*[rows[:, :-1] for rows in told], strict=True)]
    )
    counts = any([rows[:, -1].any() for rows in told])
    # a number may be so by chance: see check_loss
    if copies and counts and function.order and sum(told[0][:, 3]) > 1:
        raise MismatchError(counted_twice(function))
    function.alike = copies


def check_once(function: Communication, *xs: Array | None) -> None:
    """Of a sum or mean, of values or of gradients: on a mesh, ranks that have a loss in common have
    each a part of it.

    In forward, ``function.alike`` gets to know whether each rank has the same: their mean, or sum
    divided by P, is that again, and has its gradient.

    Raises:
        MismatchError: each rank has the whole gradient, which would be added up; on all ranks.
    """
    asked = ask_once(function, *xs)
    if asked is not None:
        judge_once(function, told(function, asked))


def check_loss(comm: Communicator, loss: Any) -> None:
    """Of a loss that ranks have in common: that no sum, joined or sent number which counts for each
    of them is a term of it.

    The gradient of such a number may be the same on all ranks by chance. So it is looked for in the
    graph: if what is computed from the number alone is added to the loss, and all ranks have the
    same loss, each has the number's whole gradient.

    Args:
        comm: the ranks that have samples in common; all of them call it.
        loss: a Variable; others are let pass.

    Raises:
        MismatchError: there is one; on all ranks of ``comm``.

    In debug mode the first of them warns if ranks have losses of their own, which add up: it may
    not be meant. It is where they have other parameters, such as members of an ensemble or heads
    for other tasks.
    """
    watch = current_watch()
    if watch is None or comm.size == 1:
        return
    mine: dict[
        Any, bool
    ] = {}  # what is a term on this rank, and whether a parameter is behind it here
    value, eps = None, 0.0
    if (
        isinstance(loss, Variable)
        and loss.array is not None
        and loss.size == 1
        and loss.dtype.kind == "f"
    ):
        value = float(loss.array)
        eps = float(np.finfo(loss.dtype).eps)
        for function in _ends(loss):
            if function.op in _EACH and not function.alike and watch.covers(function.comm):
                term = (function.op, function.site, tuple(function.comm.transport.world_ranks))
                mine[term] = mine.get(term, False) or watch.has_behind(function)
    names = tuple(sorted([path for path, _ in watch.model.namedparams()])) if is_debugging() else ()
    found = dict(
        zip(comm.transport.world_ranks, comm.allgather_obj((value, mine, names)), strict=True)
    )
    for _, terms, _ in found.values():
        for term in terms:
            op, site, ranks = term
            values = [found[rank][0] for rank in ranks if term in found[rank][1]]
            counts = any([found[rank][1].get(term) for rank in ranks])
            if (
                counts
                and len(values) == len(ranks) > 1
                and np.allclose(values, values[0], 100 * eps, 0)
            ):
                why = f"loss, of which it is a term, and so the{TWICE[op, 1].format(P=len(ranks))}"
                raise MismatchError(
                    f"{op} at {site}: each of {len(ranks)} ranks has the same {why}"
                )
    losses: dict[Any, dict[int, float]] = {}  # of ranks that have parameters of the same names
    for rank, (value, _, names) in found.items():
        if value is not None:
            losses.setdefault(names, {})[rank] = value
    for some in losses.values() if is_debugging() and comm.rank == 0 else ():
        if not np.allclose([*some.values()], [*some.values()][:1], 1e-4, 0, True):
            warnings.warn(_DIFFER.format([*some]), stacklevel=2)


def _ends(loss: Variable) -> Iterator[Any]:
    """The communications whose results, or functions of one of them alone, are added up to a
    loss.
    """
    nodes = [loss.node]
    seen = set()
    while nodes:
        node = nodes.pop()
        function: Any = node.creator
        if function is None or node.key in seen:
            continue
        seen.add(node.key)
        varying = [x for x in function.inputs if x.requires_grad]
        if function.communicates and node.shape in ((), (1,)):
            yield function.whole.what if hasattr(function, "whole") else function
        elif isinstance(function, _SUMS) or (
            len(varying) == 1 and type(function).__module__.startswith("mnpar.")
        ):
            nodes += varying


def check_terms(comm: Communicator, who: str, x: Any) -> None:
    """Of parts that are added up: on a mesh, that a parameter which all ranks have alike is not
    added to each of them.

    Its gradient would be the same on all ranks, so that nothing else shows that the sum has it P
    times. It is looked for where it is plainly a term: through sums, and what has one input, and
    not through what communicates. (What has passed copy_to has a gradient that is summed, and
    rightly the same on all ranks: copy_to hears of that.)

    Raises:
        MismatchError: there is one; on all ranks.
    """
    if not (is_recording() and watched(comm)):
        return
    nodes = dict.fromkeys(_terms(x))
    watch = current_watch()
    if watch is None or not watch.covers(comm):
        return
    params = watch.model.namedparams(include_uninit=False)
    found = comm.allgather_obj(
        {path: row_of(param.array) for path, param in params if param.node in nodes}
    )
    for name in found[0]:
        if all([name in rows for rows in found]) and alike_on_all([rows[name] for rows in found]):
            raise MismatchError(
                f"{who} at {call_site(1)}: {_TERM.format(P=comm.size, name=name)} ({comm!r})"
            )


def _terms(x: Any) -> Iterator[VariableNode]:
    """The leaves that are added to what else is in an array, or functions of one of them alone;
    marks what copy_to gave.
    """
    nodes = [x.node] if isinstance(x, Variable) else []
    seen = set()
    while nodes:
        node = nodes.pop()
        if node.key in seen:
            continue
        seen.add(node.key)
        if node.creator is None:
            yield node
        elif isinstance(
            node.creator, _SUMS
        ):  # (b - b.array counts nothing forward, and b in backward: that is meant)
            nodes += (
                node.creator.inputs if all([x.requires_grad for x in node.creator.inputs]) else []
            )
        elif isinstance(node.creator, Linear | Convolution):
            nodes += node.creator.inputs[2:]  # the bias
        elif isinstance(node.creator, _ALONE):
            varying = [x for x in node.creator.inputs if x.requires_grad]
            nodes += varying if len(varying) == 1 else []
        elif isinstance(node.creator, Communication) and node.creator.op == "copy_to":
            node.creator.alike = True


_DIFFER = (
    "ranks {} have samples in common, and losses of their own, which add up. That is right for "
    "penalties of each rank's "
    "own weights, losses of parts and the like. If they should have one loss, they compute it "
    "from parts that nobody has added "
    "up (reduce_from) or joined (gather_from)"
)

_TERM = (
    "each of {P} ranks adds the same {name} to its part, so that the sum has it {P} times, and "
    "not so its gradient: add it "
    "once, to the sum"
)
