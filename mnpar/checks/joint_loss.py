"""A loss that all ranks have in common, and that each of them differentiates: it counts P times.

backward differentiates the sum of what the ranks call it on (law 1). If each starts from a loss
that is computed alike from what a collective has made alike, the collective's backward adds up P
gradients that are all the same. That may be meant, and a division by P may make up for it. So
nothing is said if the loss, or a term of it, is a multiple by a number that may stand for that
division, if no optimizer trains what the loss depends on, or if ranks sum the gradients of
parameters anyway. Else the gradients are compared where backward adds them up: no message is sent
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.autograd.arraylike import as_array
from mnpar.autograd.engine import Seed
from mnpar.checks.fingerprint import fingerprint
from mnpar.checks.states import Survey, collective_of, is_nonlinear
from mnpar.functions.math.arithmetic import Div, Mul, MulConstant
from mnpar.runtime.callsite import warn_user

if TYPE_CHECKING:
    from mnpar.autograd.graph import Function, Gradient, VariableNode
    from mnpar.functions.communication.base import Communication


def compare_gradients(
    survey: Survey, seeds: Sequence[Seed], told: Callable[[Communication], set[str]]
) -> None:
    """Let the collectives by which a loss may count P times compare gradients in this backward.

    Args:
        survey: of the graph.
        seeds: the variables from which backward starts, with their gradients.
        told: returns the lines of which was warned, for the ranks of a communication.
    """
    if not survey.slots or any([slot.synchronized for slot in survey.slots]):
        return
    for node, g in seeds:
        for state in survey.of(node).values():
            if state is None or state.together is not None or state.varying is not None:
                continue
            kind = state.alike
            if kind is None or kind.op not in _INSTEAD or kind.comm.size == 1:
                continue
            if kind.comm.rank == getattr(kind, "root", 0) and _counts(node, g, kind.comm.size):
                kind.compare = partial(_compare, kind, told(kind), _is_linear(node, kind))


def _counts(loss: VariableNode, g: Gradient, P: int) -> bool:
    """Return whether a gradient is that of a loss which nobody has divided by P."""
    return g.size == 1 and as_array(g).item() == 1 and not _is_divided(loss, P)


def _is_divided(loss: VariableNode, P: int) -> bool:
    """Return whether a loss, or a term of it, is a multiple by a number that may stand for a
    division by P.
    """
    nodes = [loss]
    seen = set()
    while nodes:
        function = nodes.pop().creator
        if function is None or function.communicates or function.number in seen:
            continue
        seen.add(function.number)
        times = divisor(function) / P
        if times and abs(times - round(times)) < 1e-6 * abs(times):
            return True
        if not is_nonlinear(function, function.inputs):
            nodes += [x for x in function.inputs if x.requires_grad]
    return False


def _is_linear(loss: VariableNode, kind: Communication) -> bool:
    """Return whether a loss is computed from a collective's result by linear functions that take no
    other arrays: its gradient has nothing then of a rank's data.
    """
    functions: dict[int, Function] = {}
    stack = [loss.creator]
    while stack:
        function = stack.pop()
        if function is None or function.communicates or function.number in functions:
            continue
        functions[function.number] = function
        stack += [x.creator for x in function.inputs]
    reached = set()
    for number in sorted(functions):
        function = functions[number]
        for x in function.inputs:
            creator = x.creator
            if creator is not None and (
                creator.number in reached or collective_of(creator) is kind
            ):
                reached.add(number)
        if number in reached and (
            is_nonlinear(function, function.inputs)
            or any([x.shape and not x.requires_grad for x in function.inputs])
        ):
            return False
    return True


def divisor(function: Function) -> float:
    """Return the number by which a function divides its input; 0: it does something else."""
    if isinstance(function, MulConstant):
        return 1 / function.c if function.c else 0.0
    constant = not function.inputs[-1].requires_grad and function.inputs[-1].shape == ()
    if constant and isinstance(function, Div):
        return float(function._kept_inputs[-1])
    if constant and isinstance(function, Mul):
        number = float(function._kept_inputs[-1])
        return 1 / number if number else 0.0
    return 0.0


def _compare(
    kind: Communication,
    told: set[str],
    is_linear: bool,
    gys: tuple[Any, ...],
    gxs: tuple[Any, ...],
) -> None:
    """Warn, once for a line, if the sum of all ranks' gradients is P times that of this rank.

    Gradients of few digits may be equal by chance, such as those of ranks that have labels of their
    own (for each the sign of an error is 1 or -1). That of a linear loss has nothing of labels.
    """
    kind.compare = None
    P = kind.comm.size
    mine = gys[kind.comm.rank] if len(gys) == P else gys[0]
    total = gxs[0]
    if mine is None or total is None or mine.shape != total.shape or mine.dtype.kind != "f":
        return
    eps = float(np.finfo(mine.dtype).eps)
    if kind.site in told or (fingerprint(mine).plain and not is_linear):
        return
    mine = mine if kind.op == "allreduce" and kind.reduction == "mean" else P * mine
    if bool((abs(total - mine) <= 4 * P * eps * abs(total)).all()):
        told.add(kind.site)
        warn_user(_COUNTS.format(kind=kind, P=P, instead=_INSTEAD[kind.op]))


_COUNTS = (
    "{kind.op} at {kind.site}: each of {P} ranks starts backward from a loss that is computed from "
    "its result, and all have the same gradient of it. backward differentiates the sum of the "
    "ranks' losses, so a loss that they have in common counts {P} times. {instead}, or divide the "
    "loss by comm.size before backward"
)
_INSTEAD = {
    "allgather": "Take gather_from",
    "allreduce": "Take reduce_from",
    "bcast": "Let one rank alone have the loss",
    "copy_to": "Let a value pass copy_to only where the ranks do different parts of the work",
}
