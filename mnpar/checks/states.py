"""States of values: who owns a value, known from the graph alone, without a message.

For the ranks of a communicator, a value that is differentiated is

    together   one value, which all of them hold, and own together: each has its whole gradient
    own        a value of each rank: its copy, or its part; each has the gradient of that

A value is together where reduce_from or gather_from has made it, and own where it has passed
copy_to or scatter_to, or a collective of law 1 (allgather, bcast …), which adds up the gradients of
all ranks. Nothing is known of parameters and data: they may be either, and so may what is computed
from them, and what comes from other ranks by messages of its own. But no weight can be both.
``together`` is the *invariant* of spmd_types and of JAX's shard_map, and ``own`` is their
*replicated* and *varying*.

Four combinations give some rank a wrong gradient, whatever the numbers are:

    reduce_from, gather_from   of what is together: it is whole, and would be added up again; or it
                               has missed copy_to before the ranks divide the work
    copy_to, scatter_to        of what is own: its gradients would be summed twice; or it is a part
                               that nobody has summed
    any other function         of both, unless it adds them: the gradient of what is together would
                               be a part on each rank
    a weight                   that is used as what is together in one place, and as each rank's own
                               in another: it has missed copy_to there

checks/graph_checks.py says when a graph is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mnpar.errors import MismatchError

if TYPE_CHECKING:
    from mnpar.autograd.graph import Function, VariableNode
    from mnpar.functions.communication.base import Communication

Group: TypeAlias = tuple[int, ...]  # the ranks of a communicator, by their numbers in the world


class Ownership(NamedTuple):
    """The knowledge of who owns a value, for the ranks of one communicator.

    Args:
        together: the communication from which it has what the ranks own together; None: nothing.
        own: the communication from which it has what is each rank's own; None: nothing.
        varying: the communication from which it has parts, which differ between ranks; None: it
            is not known to have any.
        alike: the last communication that has made it, or what it was computed from, the same on
            all ranks, and adds up their gradients.
    """

    together: Communication | None = None
    own: Communication | None = None
    varying: Communication | None = None
    alike: Communication | None = None

    def join(self, other: Ownership) -> Ownership:
        """Return the state of what is computed from both."""
        return Ownership(
            self.together or other.together,
            self.own or other.own,
            self.varying or other.varying,
            self.alike or other.alike,
        )


# by group; None: it may be anything. A group that is missing has not touched the value yet.
States: TypeAlias = Mapping[Group, Ownership | None]

_UNTOUCHED: States = {}


class Survey:
    """The states of all values in a graph.

    Args:
        roots: variables; what they were computed from belongs to the graph.
        communications: those on the tape; those through which other ranks may send gradients, and
            what they were computed from, belong to it, too.

    Raises:
        MismatchError: the graph has one of the combinations that give a wrong gradient.
    """

    def __init__(
        self, roots: Iterable[VariableNode], communications: Sequence[Function] = ()
    ) -> None:
        speaking = [f for f in communications if not (f.silent_forward or f.silent_backward)]
        functions = ancestors(roots, speaking)
        self._order = [functions[number] for number in sorted(functions)]
        leaves = [x for f in self._order for x in f.inputs if x.creator is None]
        self._named = any(map(_is_parameter, leaves))
        # the places of the gradients by which optimizers change parameters
        self.slots = [x.grad_slot for x in leaves if x.grad_slot is not None]
        kinds = [_communication(function) for function in self._order]
        groups = dict.fromkeys([group_of(kind) for kind in kinds if kind is not None])
        self._unknown: States = dict.fromkeys(groups)
        # of what functions computed, by their numbers; those of constants are missing
        self._found: dict[int, States] = {}
        # as what leaves are used
        self._uses: dict[VariableNode, dict[Group, Ownership]] = {}
        self._used_as_both: str = ""
        for function, kind in zip(self._order, kinds, strict=True):
            states = self._after(function, kind)
            if states is not None:
                self._found[function.number] = states
        if self._used_as_both:  # what is said before says more
            raise MismatchError(self._used_as_both)

    def of(self, node: VariableNode) -> States:
        """Return the states of a variable."""
        return self._of(node) or _UNTOUCHED

    def _of(self, node: VariableNode) -> States | None:
        """Return the states of a variable; None if nobody updates what it depends on."""
        if node.creator is not None:
            return self._found.get(node.creator.number)
        counts = node.requires_grad and (_is_parameter(node) or not self._named)
        return _UNTOUCHED if counts else None

    def _after(self, function: Function, kind: Communication | None) -> States | None:
        """Return the states of the outputs of a function; None: nobody updates what they depend
        on.
        """
        if kind is None:
            if function.communicates or function.opaque:
                return self._unknown
            return self._computed(function)
        if kind.order:  # a recorded gradient: its function was looked at
            return self._unknown
        inputs = _inputs(function)
        if not inputs:  # what another rank gave
            return self._unknown
        states = _joined([self._of(x) for x in inputs])
        if states is None:
            return None
        result = _communicated(kind, states, self._unknown)
        if kind.inputs_are in _NEEDED:
            for x in inputs:
                self._use(x, group_of(kind), _NEEDED[kind.inputs_are](kind))
        return result

    def _computed(self, function: Function) -> States | None:
        """Return the states of what a local function gives; of its terms alone both kinds may
        come.
        """
        terms = function.inputs[function.summands]
        factors = [x for x in function.inputs if x not in terms]
        states = _joined([self._of(x) for x in factors])
        if states and is_nonlinear(function, factors):
            for group, state in states.items():
                if state is None:
                    continue
                if state.together is not None and state.own is not None:
                    raise MismatchError(_mixed(function, state))
                for x in factors:
                    if self._of(x) is not None and group not in self.of(x):
                        self._use(x, group, state)
        return _joined([states, *[self._of(x) for x in terms]]) if terms else states

    def _use(self, node: VariableNode, group: Group, state: Ownership) -> None:
        """Note as what the leaves are used from which local functions alone computed a variable."""
        stack = [node]
        seen = set()
        while stack:
            x = stack.pop()
            function = x.creator
            if function is not None:
                if not (function.communicates or function.opaque or function.number in seen):
                    seen.add(function.number)
                    stack += [x for x in function.inputs if x is not _added_once(function)]
            elif self._of(x) is not None:
                uses = self._uses.setdefault(x, {})
                uses[group] = both = uses.get(group, Ownership()).join(state)
                if both.together is not None and both.own is not None:
                    self._used_as_both = self._used_as_both or _used_as_both(x, both)


def _added_once(function: Any) -> VariableNode | None:
    """Return the input of a function that a sum over ranks gets from one of them, and of which each
    has the whole gradient all the same.
    """
    return function.inputs[1] if getattr(function, "adds_once", False) else None


def ancestors(
    roots: Iterable[VariableNode], communications: Iterable[Function]
) -> dict[int, Function]:
    """Return communications, and the functions from which they and ``roots`` were computed, by
    number.
    """
    functions: dict[int, Function] = {}
    stack = [*communications, *[x.creator for x in roots]]
    while stack:
        function = stack.pop()
        if function is not None and function.number not in functions:
            functions[function.number] = function
            stack += [x.creator for x in _inputs(function)]
    return functions


def _inputs(function: Any) -> Sequence[VariableNode]:
    """Return the inputs of a function; both phases of a collective that is awaited later have
    those of the first.
    """
    whole = getattr(function, "whole", None)
    inputs: Sequence[VariableNode] = () if whole is None else whole.what.inputs
    return inputs or function.inputs


def _communication(function: Any) -> Communication | None:
    """Return the communication with states that a function is, or is a phase of; None: others."""
    kind = collective_of(function)
    return kind if function.communicates and hasattr(kind, "outputs_are") else None


def collective_of(function: Any) -> Any:
    """Return the collective of which a function is a phase; other functions themselves."""
    whole = getattr(function, "whole", None)
    return function if whole is None else whole.what


def group_of(kind: Communication) -> Group:
    """Return the ranks of a communication's communicator, by their numbers in the world."""
    return tuple(kind.comm.transport.world_ranks)


def _is_parameter(node: VariableNode) -> bool:
    """Return whether a leaf is a parameter of a link, which names it."""
    return node.name is not None and node.requires_grad


def is_nonlinear(function: Any, factors: Sequence[VariableNode]) -> bool:
    """Return whether the gradient of an input depends on the inputs: what a function's backward
    needs, it keeps.
    """
    varying = [x for x in factors if x.requires_grad]
    if function.is_product and len(varying) < 2:  # with a constant
        return False
    kept = [function.inputs[i] for i in function._kept_input_indexes]
    return bool(function._kept_output_indexes) or any([x in varying for x in kept])


def _joined(some: Iterable[States | None]) -> States | None:
    """Return the states of what is computed from several values; None: all are constants."""
    result: States | None = None
    for states in some:
        if states is None or states is result:
            continue
        if not result or not states:
            result = result or states
            continue
        joined = dict(result)
        for group, state in states.items():
            if group in joined:
                before = joined[group]
                joined[group] = None if state is None or before is None else before.join(state)
            else:
                joined[group] = state
        result = joined
    return result


def _communicated(kind: Communication, states: States, unknown: States) -> States:
    """Return the states of the outputs of a communication: the table of this module."""
    here = group_of(kind)
    if len(here) == 1:
        return states
    outputs_are = kind.outputs_are
    result = dict(states)
    for group in unknown:
        if group != here and len(set(group) & set(here)) > 1:
            result[group] = None
    state = states.get(here, Ownership())
    if not outputs_are:
        state = None
    elif kind.inputs_are == "copies":
        _refuse_own(kind, state)
        state = Ownership(own=kind, varying=kind if outputs_are == "parts" else None, alike=kind)
    elif kind.inputs_are == "parts":
        _refuse_together(kind, state)
        state = Ownership(together=kind)
    elif state is None or (state.together is not None and outputs_are != "sum"):
        state = None
    elif outputs_are == "sum":  # of what is together, it is a multiple
        state = Ownership(state.together, state.own and kind, alike=kind)
    else:
        state = Ownership(own=kind, varying=kind if outputs_are == "parts" else None, alike=kind)
    result[here] = state
    return result


# ---- what is wrong ----


def _refuse_own(kind: Communication, state: Ownership | None) -> None:
    if state is not None and state.own is not None:
        before = state.own
        why = _PASSED.get(before.op, _ADDED)
        why = why.format(P=kind.comm.size, name=kind.op, before=before.op)
        raise MismatchError(
            f"{kind.op} at {kind.site} takes what all ranks hold alike and own together. Its input "
            f"was computed from what {before.op} at {before.site} gave, and {why} ({kind.comm!r})"
        )


def _refuse_together(kind: Communication, state: Ownership | None) -> None:
    if state is not None and state.together is not None:
        before = state.together
        raise MismatchError(
            f"{kind.op} at {kind.site} takes a part from each rank. Its input was computed from "
            f"what {before.op} at {before.site} gave, which is whole, and which the ranks own "
            f"together: if all do the same with it, the result is whole too, so leave out "
            f"{kind.op}; if each does a part of the work with it, let it pass "
            f"{_ENTRANCE[kind.op]} before ({kind.comm!r})"
        )


def _used_as_both(leaf: VariableNode, state: Ownership) -> str:
    whole, own = state.together, state.own
    assert whole is not None
    assert own is not None
    name = f"the weight {leaf.name}" if leaf.name else "a Variable"
    return (
        f"{name} of shape {leaf.shape} is used in two ways: with {whole.op} at {whole.site} as what"
        f" the ranks own together, and with {own.op} at {own.site} as what each rank has of its"
        " own, whose gradient is a part on each. If the ranks have it alike, let it pass copy_to in"
        f" the second place; if it is each rank's own, what it meets in the first ({whole.comm!r})"
    )


def _mixed(function: Any, state: Ownership) -> str:
    whole, own = state.together, state.own
    assert whole is not None
    assert own is not None
    return (
        f"{function.label} computes with what {whole.op} at {whole.site} gave, which the ranks own "
        f"together, and with what each rank has of its own by {own.op} at {own.site}. So each rank "
        f"would have a part of the gradient of the first, where it must have the whole: let the "
        f"first pass copy_to before; or, if the second is a part of a sum, let it pass reduce_from "
        f"before ({whole.comm!r})"
    )


_NEEDED: Mapping[str, Callable[[Communication], Ownership]] = {
    "copies": lambda kind: Ownership(together=kind),
    "parts": lambda kind: Ownership(own=kind),
}

_TWICE = (
    "each rank has its own gradient of it, which {name} would add up a second time: let a value "
    "pass copy_to once, and only where the ranks do different parts of the work with it; and what "
    "are parts, reduce_from before"
)
_PART = "it is a part: let it pass gather_from or reduce_from before"
_ADDED = (
    "{before} adds up the gradients of all ranks in backward, as {name} does: they would count {P} "
    "times. Let one function do that, or join what are parts by gather_from or reduce_from"
)
_PASSED = {"copy_to": _TWICE, "scatter_to": _PART}
_ENTRANCE = {"reduce_from": "copy_to", "gather_from": "scatter_to or copy_to"}
