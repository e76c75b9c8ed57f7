"""Checks that what counts once is not counted once for each rank (law 1).

    reduce_from, gather_from       add up or join parts: ranks with the same part, or with the same
                                   parameter in each part, have it P times
    copy_to                        sums the gradients of parts of the work
    allreduce, allgather, bcast    sum the gradients of all ranks: ranks that have one loss in
                                   common have the same gradient, which then counts P times

The gradient of the loss is then P times, or a P-th of, what it should be, on all ranks alike, so
nothing else shows it. Checks let pass what may be right: sums that nothing is differentiated
through, equal parts that are plain, a single number whose gradient is the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.checks.fingerprint import Fingerprint, equal_on_all, fingerprint
from mnpar.checks.replication_checks import exchange, is_checked, name_of
from mnpar.configuration import is_debugging, is_recording
from mnpar.errors import MismatchError
from mnpar.runtime.callsite import call_site
from mnpar.variable import Variable

if TYPE_CHECKING:
    from mnpar.autograd.graph import Function, VariableNode
    from mnpar.backend import Array
    from mnpar.checks.mesh_update import MeshUpdate
    from mnpar.communicators.communicator import Communicator
    from mnpar.functions.communication.base import Communication


_ALL = slice(None)
_EACH = ("allreduce", "allgather", "bcast")  # each rank gets the gradients of all


def check_parts(update: MeshUpdate | None, function: Communication, x: Array | None) -> None:
    """Check that the parts which a function adds up or joins, values or gradients, are parts.

    Raises:
        MismatchError: each rank has the same, to the last digit, and not by chance; on all ranks.
    """
    if not (
        (name_of(function), function.order) in _COUNTED_TWICE
        and _carries_first_gradient(function)
        and is_checked(update, function.comm)
    ):
        return
    harmless = function.alike or not _may_update(update, function)
    rows = exchange(function, np.array([*fingerprint(x), harmless]))
    prints = [Fingerprint(*row[:-1]) for row in rows]
    # the gradient of one number may be the same by chance
    matters = prints[0].size > 1 if function.order else function.differentiable
    if matters and equal_on_all(prints) and not any([row[-1] for row in rows]):
        raise MismatchError(_counted_twice(function))


def check_blocks(
    update: MeshUpdate | None, comm: Communicator, who: str, what: str, x: Variable
) -> None:
    """Check that no rank gives ``who`` a whole array where its block is expected.

    Raises:
        MismatchError: each rank has the same, to the last digit, and not by chance; on all ranks.
    """
    if is_recording() and is_checked(update, comm):
        rows = comm.allgather(np.array([*fingerprint(x.array), x.node.requires_grad]))
        prints = [Fingerprint(*row[:-1]) for row in rows]
        if equal_on_all(prints) and all([row[-1] for row in rows]):
            raise MismatchError(
                f"{who} at {call_site(1)}: {_WHOLE.format(P=comm.size, what=what)} ({comm!r})"
            )


def asks(update: MeshUpdate | None, comm: Communicator) -> bool:
    """Return whether the ranks of a communicator compare what they add up (:func:`check_sum`).

    All of them get the same answer.
    """
    return update is not None and comm.size > 1 and update.shares_samples(comm)


def question(
    update: MeshUpdate | None, function: Communication, xs: Sequence[Array | None]
) -> Array | None:
    """Return what a rank gives the others for :func:`check_sum`; None if nothing is asked."""
    if not (
        function.inputs_are == "terms"
        and (function.order == 1 or function.op == "allreduce")
        and not function.alike
        and _carries_first_gradient(function)
        and asks(update, function.comm)
    ):
        return None
    return np.array([[*fingerprint(x), _may_update(update, function)] for x in xs])


def judge(function: Communication, answers: Sequence[Array]) -> None:
    """Judge what :func:`question` gave on each rank: the second half of :func:`check_sum`."""
    prints = [[Fingerprint(*row[:-1]) for row in rows] for rows in answers]
    equal = all([equal_on_all(each) for each in zip(*prints, strict=True)])
    updates = any([rows[:, -1].any() for rows in answers])
    # a number may be so by chance: see check_loss
    if equal and updates and function.order and sum([each.size for each in prints[0]]) > 1:
        raise MismatchError(_counted_twice(function))
    function.alike = equal


def check_sum(
    update: MeshUpdate | None, function: Communication, xs: Sequence[Array | None]
) -> None:
    """Check that ranks with one loss in common add up parts of its gradient, and not the whole.

    In forward, ``function.alike`` learns whether each rank gives the same value: the mean of these,
    or their sum divided by P, is that value again, and has its gradient.

    Raises:
        MismatchError: each rank has the whole gradient, which would be added up; on all ranks.
    """
    asked = question(update, function, xs)
    if asked is not None:
        judge(function, exchange(function, asked))


def check_loss(update: MeshUpdate | None, comm: Communicator, loss: Any) -> None:
    """Check that no term of a loss that ranks have in common counts once for each of them.

    The gradient of a number that is summed, joined or sent may be the same on all ranks by chance.
    So the graph is searched: if what is computed from the number alone is added to the loss, and
    all ranks have the same loss, each has the number's whole gradient.

    In debug mode the first rank warns if ranks have losses of their own, which add up: that may not
    be meant. It is where they have other parameters, such as members of an ensemble or heads for
    other tasks.

    Args:
        update: nothing is checked if it is None.
        comm: the ranks that have samples in common; all of them call it.
        loss: a Variable; others are let pass.

    Raises:
        MismatchError: there is such a term; on all ranks of ``comm``.
    """
    if update is None or comm.size == 1:
        return
    # the terms on this rank, and whether each depends on a parameter here
    mine: dict[tuple[Any, ...], bool] = {}
    value, eps = None, 0.0
    if (
        isinstance(loss, Variable)
        and loss.array is not None
        and loss.size == 1
        and loss.dtype.kind == "f"
    ):
        value = float(loss.array)
        eps = float(np.finfo(loss.dtype).eps)
        for function in _communicated_terms(loss):
            if function.op in _EACH and not function.alike and update.shares_samples(function.comm):
                term = (function.op, function.site, tuple(function.comm.transport.world_ranks))
                mine[term] = mine.get(term, False) or update.depends_on_parameter(function)
    names: tuple[str, ...] = ()
    if is_debugging():
        names = tuple(sorted([path for path, _ in update.model.namedparams()]))
    found = dict(
        zip(comm.transport.world_ranks, comm.allgather_obj((value, mine, names)), strict=True)
    )
    for _, terms, _ in found.values():
        for term in terms:
            op, site, ranks = term
            values = [found[rank][0] for rank in ranks if term in found[rank][1]]
            counts = any([found[rank][1].get(term) for rank in ranks])
            everywhere = len(values) == len(ranks) > 1
            if counts and everywhere and np.allclose(values, values[0], 100 * eps, 0):
                again = _COUNTED_TWICE[op, 1].format(P=len(ranks))
                raise MismatchError(
                    f"{op} at {site}: each of {len(ranks)} ranks has the same loss, of which it is "
                    f"a term, and so the{again}"
                )
    if is_debugging() and comm.rank == 0:
        _warn_of_own_losses(found)


def _warn_of_own_losses(found: dict[int, tuple[Any, Any, Any]]) -> None:
    losses: dict[Any, dict[int, float]] = {}  # of ranks that have parameters of the same names
    for rank, (value, _, names) in found.items():
        if value is not None:
            losses.setdefault(names, {})[rank] = value
    for some in losses.values():
        values = [*some.values()]
        if not np.allclose(values, values[:1], 1e-4, 0, True):
            warnings.warn(_DIFFER.format([*some]), stacklevel=2)


def _communicated_terms(loss: Variable) -> Iterator[Communication]:
    """Yield the communications whose result, or a function of it alone, is a term of a loss."""
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
        elif function.summands == _ALL or (
            len(varying) == 1 and type(function).__module__.startswith("mnpar.")
        ):
            nodes += varying


def check_terms(update: MeshUpdate | None, comm: Communicator, who: str, x: Any) -> None:
    """Check that no parameter which all ranks have alike is added to each of the parts of a sum.

    The parameter's gradient would be the same on all ranks, so nothing else shows that the sum has
    it P times. It is looked for where it is plainly a term: through sums and functions of one
    input, and not through what communicates. (What passed copy_to has a gradient that is summed,
    and is rightly the same on all ranks: copy_to learns of that.)

    Raises:
        MismatchError: there is such a parameter; on all ranks.
    """
    if not (is_recording() and is_checked(update, comm)):
        return
    nodes = dict.fromkeys(_terms(x))
    if update is None or not update.shares_samples(comm):
        return
    params = update.model.namedparams(include_uninit=False)
    found = comm.allgather_obj(
        {path: fingerprint(param.array) for path, param in params if param.node in nodes}
    )
    for name in found[0]:
        if all([name in prints for prints in found]) and equal_on_all(
            [prints[name] for prints in found]
        ):
            raise MismatchError(
                f"{who} at {call_site(1)}: {_TERM.format(P=comm.size, name=name)} ({comm!r})"
            )


def _terms(x: Any) -> Iterator[VariableNode]:
    """Yield the leaves that are terms of x, or of which one term is a function; mark each copy_to
    on the way.
    """
    nodes = [x.node] if isinstance(x, Variable) else []
    seen = set()
    while nodes:
        node = nodes.pop()
        if node.key in seen:
            continue
        seen.add(node.key)
        function: Any = node.creator
        if function is None:
            yield node
        elif not function.communicates:
            nodes += _terms_of(function)
        elif getattr(function, "op", "") == "copy_to":
            function.alike = True


def _terms_of(function: Function) -> Sequence[VariableNode]:
    """Return the inputs of which the output is plainly a sum, or the one of which it is a function
    or a multiple.
    """
    summands = function.inputs[function.summands]
    if summands:
        # b - b.array is nothing in forward, and b in backward: that is meant
        return summands if all([x.requires_grad for x in summands]) else ()
    if len(function.inputs) > 1 and not function.is_product:
        return ()
    varying = [x for x in function.inputs if x.requires_grad]
    return varying if len(varying) == 1 else ()


def _carries_first_gradient(function: Communication) -> bool:
    """Return whether a function carries a value that gradients may be wanted of, or a gradient, but
    not the gradient of a gradient.
    """
    return function.order == 1 or (function.order == 0 and is_recording())


def _may_update(update: MeshUpdate | None, function: Communication) -> bool:
    """Return whether what a function carries may be the gradient of a parameter."""
    if update is None or function.of is None:
        return True
    return update.depends_on_parameter(function.of)


def _counted_twice(function: Communication) -> str:
    name, comm = name_of(function), function.comm
    why = _COUNTED_TWICE[name, function.order].format(P=comm.size)
    return f"{name} at {function.site}: each of {comm.size} ranks has the same{why} ({comm!r})"


_COUNTS_AGAIN = (
    " gradient of its result, which they have in common, so that it would count {{P}} times: "
    "take {} in its place"
)

# what is wrong if each rank has the same, by the function that the user called and its order
_COUNTED_TWICE = {
    ("reduce_from", 0): (
        ", so that the sum is {P} times what it should be: a value that all ranks have alike is "
        "whole, and not a part"
    ),
    ("gather_from", 0): " part: cut and join along the same axis of the mesh",
    ("copy_to", 1): (
        " gradient of its result, so that it would count {P} times: let a value pass copy_to once, "
        "and only where the ranks do different parts of the work with it"
    ),
    ("allreduce", 1): _COUNTS_AGAIN.format("reduce_from, and for a mean divide what it gives,"),
    ("allgather", 1): _COUNTS_AGAIN.format("gather_from"),
    ("bcast", 1): _COUNTS_AGAIN.format(
        "what each can compute by itself, or let one rank alone have the loss,"
    ),
}

_WHOLE = (
    "each of {P} ranks has the same {what}, and not a block of them: take them as they are before "
    "they are gathered, such as with ColumnParallelLinear(…, gather_output=False)"
)

_DIFFER = (
    "ranks {} have samples in common, and losses of their own, which add up. That is right for "
    "penalties of each rank's own weights, losses of parts and the like. If they should have one "
    "loss, they compute it from parts that nobody has added up (reduce_from) or joined "
    "(gather_from)"
)

_TERM = (
    "each of {P} ranks adds the same {name} to its part, so that the sum has it {P} times, and "
    "not so its gradient: add it once, to the sum"
)
