"""Weights that are never trained, although the program means them to be: told at the first update.

What can never be meant is an error; what a program might mean is a warning.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MethodType, SimpleNamespace
from typing import Any

from mnpar.autograd.tape import current_tape
from mnpar.autograd.unclaimed import forget_unclaimed, unclaimed_parameters
from mnpar.communicators.create import current_rank
from mnpar.communicators.threads.transport import current_transport
from mnpar.errors import listed
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.runtime.callsite import warn_user
from mnpar.runtime.launcher import under_launcher
from mnpar.variable import Variable

_SCALARS = (str, bytes, int, float, bool, type(None))


def warn_of_unregistered(link: Link) -> None:
    """Warn of parameters, and of Variables used as such, that have gradients and that no optimizer
    updates: attributes of a link that the link does not register (in a list, a dict or a dataclass,
    say), and what the last backward has found elsewhere (in a closure, a global, another object).

    Those that another optimizer updates, and those that are children of the link too, are meant to
    be there.
    """
    known = {id(one) for one in (*link.links(), *link.params())}
    places: list[str] = []
    variables: list[str] = []
    told: set[int] = set()
    for path, owner in list(link.namedlinks()):
        for name, value in list(vars(owner).items()):
            where = f"{path.rstrip('/')}/{name}"
            found = [one for one in _unregistered(value, known) if _is_forgotten(one)]
            kinds = {type(one) for one in found}
            told.update(id(param) for one in found for param in _parameters(one))
            if Variable in kinds:
                variables.append(f"{where} of a {type(owner).__name__}")
            if kinds - {Variable}:
                places.append(f"{where}, a {type(value).__name__} of a {type(owner).__name__}")
    if places:
        warn_user(
            f"{_rank()}the parameters in {listed(places)}, have gradients, but no optimizer "
            "updates them: a mnpar.Chain finds the links that are its attributes, and a "
            "mnpar.ChainList(*links) those in a row"
        )
    if variables:
        warn_user(
            f"{_rank()}the Variables {listed(variables)} have gradients, but no optimizer updates "
            "them: a weight is a mnpar.Parameter(array), a constant a "
            "mnpar.Variable(array, requires_grad=False)"
        )
    elsewhere = [
        f"{param.name or 'a Parameter'} {param.shape}"
        for param in unclaimed_parameters()
        if id(param) not in known | told and _is_forgotten(param)
    ]
    forget_unclaimed()
    if elsewhere and not _without_gradient(link):  # else a loss of another model, told elsewhere
        warn_user(_ELSEWHERE.format(_rank(), listed(elsewhere), type(link).__name__))


def _parameters(one: Variable | Link) -> Iterable[Variable]:
    """Return the parameters of a link, or the Variable."""
    return one.params() if isinstance(one, Link) else (one,)


_ELSEWHERE = (
    "{}the parameters {} have gradients, but no optimizer updates them: they are in no link of the "
    "{} that is trained, but in a closure, a global or an object. Let the links that have them be "
    "attributes of a mnpar.Chain, and set the optimizer up for that; if they are to stay as they "
    "are, set it up for them, too, and call disable_update() of these links"
)


def warn_of_uncalled(model: Link) -> None:
    """Warn of links that average gradients over ranks by their forward, and have gradients before
    it was ever called.
    """
    for link in model.links():
        comms = link.gradient_comms()
        if comms.averages or not any([comm.size > 1 for comm in comms.averaged]):
            continue
        if any([param.grad is not None for param in link.params()]):
            name = type(link).__name__
            warn_user(
                f"{_rank()}the parameters in a {name} have gradients, but the {name} was never "
                "called: they are changed by this rank's gradients alone. Call it, and not its "
                "module"
            )


def _unregistered(value: Any, known: set[int]) -> Iterator[Variable | Link]:
    """Return the links and Variables in an attribute's value, those in containers of containers
    too, but for those that are known; what is in them becomes known.
    """
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, _SCALARS) or id(one) in known:
            continue
        if isinstance(one, Link):
            known.add(id(one))
            yield one
            stack += vars(one).values()
        elif isinstance(one, Variable):
            known.add(id(one))
            yield one
        else:
            parts = _parts(one)
            if parts is not None:
                known.add(id(one))
                stack += parts


def _parts(value: Any) -> Iterable[Any] | None:
    """Return what a container, a method or a call with arguments holds; None of what holds
    nothing.
    """
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | Set | deque):
        return value
    if isinstance(value, SimpleNamespace) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    ):
        return vars(value).values() if hasattr(value, "__dict__") else ()
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        return (value.__self__,)
    return None


def _is_forgotten(one: Variable | Link) -> bool:
    """Return whether backward has given a gradient to what no optimizer updates."""
    if isinstance(one, Link):
        return any(map(_is_forgotten, one.params()))
    if one.node.gradient is None:
        return False
    return one.update_rule is None if isinstance(one, Parameter) else one.creator is None


def has_communicated() -> bool:
    """Return whether this rank has recorded communications, whose backward is still to come."""
    tape = current_tape()
    return bool(tape.records or tape.pending)


def check_loss(target: Link, loss: Any, joint: bool) -> None:
    """Tell where the first backward from a loss function's loss has reached no parameter.

    Args:
        target: the link that is updated.
        loss: what the loss function returned.
        joint: whether this rank has communicated before, so that gradients may be those of other
            ranks' losses (:func:`has_communicated`).

    Raises:
        TypeError: there is no loss, and no other rank that may have one.
        RuntimeError: the loss has no graph, and there is no other rank.
    """
    if joint:
        return
    missed = _without_gradient(target)
    if not missed:
        return
    kind = type(target).__name__
    if loss is None:
        told = (
            f"the loss function returned None, so no parameter of the {kind} is trained: it must "
            "return the loss (does a path through it end without return?)"
        )
        _tell(TypeError(told))
    elif loss.creator is None:
        told = (
            f"the loss {loss!r} has no graph, so no parameter of the {kind} is trained: it must "
            "be computed by functions of Variables, not of their arrays (.array), and not under "
            "mnpar.no_backprop_mode()"
        )
        _tell(RuntimeError(told))
    else:
        warn_user(
            f"{_rank()}no parameter of the {kind} has a gradient, of "
            f"{listed(missed, 4)}: the loss does not depend on the model that the optimizer was "
            "set up for (on a copy of it?)"
        )


def check_gradients(target: Link, t: int) -> bool:
    """Warn if the second ``update()`` without a loss function finds no gradient, as the first did:
    one alone is what optimizers that take turns may do.

    Args:
        target: the link that is updated.
        t: the number of updates before this one.

    Returns:
        Whether all is said: there are gradients, or they were missed.
    """
    missed = [] if _has_others() else _without_gradient(target)
    if missed and t:
        warn_user(
            f"update() without a loss function uses the gradients that there are, and no "
            f"parameter of the {type(target).__name__} has had one, of {listed(missed, 4)}: call "
            "model.cleargrads() and loss.backward() before it"
        )
    return t > 0 or not missed


def _without_gradient(target: Link) -> list[str]:
    """Return the paths of the parameters that the optimizer trains, if none of them has a
    gradient.
    """
    trained = [
        (path, param)
        for path, param in target.namedparams()
        if param.update_rule is None or param.update_rule.enabled
    ]
    if any([param.node.gradient is not None for _, param in trained]):
        return []
    return [path for path, _ in trained]


def _tell(error: Exception) -> None:
    """Raise where this rank is the only one; elsewhere it may have no part in this update, and is
    warned.
    """
    if not _has_others():
        raise error
    warn_user(f"{_rank()}{error}")


def _rank() -> str:
    """Return the beginning of a message: which rank says it, where there are several."""
    return f"rank {current_rank()}: " if _has_others() else ""


def _has_others() -> bool:
    """Return whether this is one rank of several."""
    transport = current_transport.get()
    return under_launcher() if transport is None else transport.size > 1
