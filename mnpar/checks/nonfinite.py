"""A loss that is NaN or infinite where ranks communicate: where that came from, said once.

NaN on one rank goes to all, and nothing shows then where it was first. No array is looked at until
a loss is not finite. Then the arrays that functions keep for backward are searched, in the order in
which they were computed. So a rank knows whether NaN came with a communication, or was its own
before. Only debug mode, which looks at every array, always knows the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar.autograd.engine import Seed
from mnpar.autograd.graph import VariableNode
from mnpar.checks.states import ancestors, collective_of
from mnpar.configuration import is_debugging
from mnpar.runtime.callsite import call_site, warn_user

if TYPE_CHECKING:
    from mnpar.backend import Array


def warn_of_nonfinite(
    seeds: Sequence[Seed],
    communications: Sequence[Any],
    loss: Array,
    told: Callable[[Any], set[str]],
) -> None:
    """Warn, once on a rank, where the NaN or infinity of its loss came from.

    If ranks sum gradients, the optimizer tells it. What a collective gave to all ranks, the first
    of these tells.

    Args:
        seeds: the variables from which backward starts, with their gradients.
        communications: those on the tape.
        loss: is not finite.
        told: returns the lines of which was warned, for the ranks of a communication.
    """
    first = next((f for f in communications if f.comm is not None), None)
    if first is None or is_debugging() or "NaN" in told(first):
        return
    told(first).add("NaN")
    found = ancestors([node for node, _ in seeds], communications)
    functions = [found[number] for number in sorted(found)]
    slots = [x.grad_slot for f in functions for x in f.inputs if x.grad_slot is not None]
    if any([slot.synchronized for slot in slots]):
        return
    is_bad = _is_nan if _is_nan(loss) else _is_infinite
    node = next(filter(None, [_first_bad(f, is_bad) for f in functions]), seeds[0][0])
    node = _message_before(node) or node
    creator = node.creator
    here = f"rank {first.comm.transport.world_ranks[first.comm.rank]}"
    loss_is = f"{here}: its loss, from which backward starts at {call_site(1)}, is {loss.item()}. "
    if creator is not None and creator.communicates:
        kind = collective_of(creator)
        if kind.op not in _TO_ALL or not kind.comm.rank:
            warn_user(loss_is + _CAME.format(kind) + _REMEDY)
    else:
        what = _OF_FUNCTION.format(creator.label) if creator is not None else _of_leaf(node)
        warn_user(loss_is + _OWN.format(what, first.op or first.label, first.site) + _REMEDY)


def _first_bad(function: Any, is_bad: Callable[[Array], bool]) -> VariableNode | None:
    """Return a variable whose array a function keeps, and which is bad; None: there is none."""
    for i, x in zip(function._kept_input_indexes, function._kept_inputs, strict=False):
        if is_bad(x):
            node: VariableNode = function.inputs[i]
            return node
    for i, y in zip(function._kept_output_indexes, function._kept_outputs, strict=False):
        if is_bad(y):
            return VariableNode(y, True, function, i)
    return None


def _message_before(node: VariableNode) -> VariableNode | None:
    """Return the latest result of a communication from which a variable was computed by functions
    that keep nothing of it, so that it may have been bad; None: there is none.
    """
    messages = []
    stack = [node]
    seen = set()
    while stack:
        x = stack.pop()
        function: Any = x.creator
        if function is None or x.key in seen:
            continue
        seen.add(x.key)
        if function.communicates:
            messages.append(x)
        else:
            kept = function._kept_input_indexes
            stack += [x for i, x in enumerate(function.inputs) if i not in kept]
    return max(messages, key=lambda x: x.creator.number if x.creator else 0, default=None)


def _of_leaf(node: VariableNode) -> str:
    name = f"the weight {node.name}" if node.name else "what the program gives"
    return f"{name}, {node.dtype} {node.shape}"


def _is_nan(x: Array) -> bool:
    return x.dtype.kind in "fc" and bool((x != x).any())


def _is_infinite(x: Array) -> bool:
    return x.dtype.kind in "fc" and bool((abs(x) == np.inf).any())


# the results of these are the same on all ranks
_TO_ALL = ("allgather", "allreduce", "bcast", "gather_from", "reduce_from")

_OF_FUNCTION = "the result of {}"
_OWN = (
    "It was here first in {}, as far as arrays are kept, and goes to other ranks by communications "
    "such as {} at {}. "
)
_CAME = "It came with {0.op} at {0.site}, as far as arrays are kept. "
_REMEDY = "mnpar.set_debug(True) on all ranks names the function and the rank"
