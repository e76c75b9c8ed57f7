"""Updates of whole arenas: if all parameters of an arena have the same elementwise rule, it is
applied to the arena's vector.

The rules' states become views of vectors, too, so programs see no difference. If a parameter of the
arena differs (its own hyperparameters or hooks, no gradient, a rule that is not elementwise), the
arena's parameters are updated one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from mnpar.backend import Array
from mnpar.optimizers.flat_buffers import Arena
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter, structure
from mnpar.variable import Variable

_set = object.__setattr__  # a count is no change of a rule


class Whole:
    """An arena's vector as one parameter, with a rule for it.

    Args:
        arena: of parameters whose rules are alike.
    """

    def __init__(self, arena: Arena) -> None:
        # no Parameter, so that setting its array does not change ``structure``
        self.param: Any = Variable(arena.data)
        self.data, self.grad = arena.data, arena.grad
        self.rule = copy.copy(arena.params[0].update_rule)
        self.rule.state = {}
        self.rule.prepare(self.param)
        self._views: dict[str, list[Array]] = {
            name: [
                vector[place].reshape(param.array.shape)
                for param, place in zip(arena.params, arena.slices, strict=True)
            ]
            for name, vector in self.rule.state.items()
        }
        self.gather(arena)

    def gather(self, arena: Arena) -> bool:
        """Make the rules' states views of the vectors; False if a rule has lost its state since the
        last time.
        """
        for name, views in self._views.items():
            for param, view in zip(arena.params, views, strict=True):
                state = param.update_rule.state
                if state.get(name) is not view:
                    if name in state:
                        view[...] = state[name]
                    elif arena.whole is self:
                        return False
                    state[name] = view
        return True

    def begin(self, arena: Arena) -> None:
        """Prepare a step."""
        self.grad = arena.grad
        _set(self.rule, "t", arena.joint.rules[0].t + 1)

    def step(self, place: slice | None = None) -> None:
        """Update a slice of the values, or all of them, by their gradients."""
        param = self.param
        rule = self.rule
        state = self.rule.state
        grad = self.grad
        if place is not None:
            param.array = self.data[place]
            grad = grad[place]
            rule.state = {name: vector[place] for name, vector in state.items()}
        param.node.gradient = grad
        try:
            rule.update_core(param)
        finally:  # somebody may interrupt it, and go on later
            param.node.gradient = None
            if place is not None:
                param.array, rule.state = self.data, state

    def end(self, arena: Arena) -> None:
        """Finish a step, after all slices: count it in the parameters' rules."""
        t = self.rule.t
        for rule in arena.joint.rules:
            _set(rule, "t", t)


def begins(arena: Arena) -> bool:
    """Whether the parameters of an arena can be updated together; if so, ``arena.whole`` is
    prepared for the step.
    """
    if not is_whole(arena):
        return False
    if arena.whole is None or not arena.whole.gather(arena):
        arena.whole = None
        arena.whole = Whole(arena)
    arena.whole.begin(arena)
    return True


def update(params: list[Parameter], arenas: Iterable[Arena]) -> None:
    """Update parameters, those of an arena together where possible."""
    together = [arena for arena in arenas if begins(arena)]
    alone = len(params)
    for arena in together:
        arena.whole.step()
        arena.whole.end(arena)
        alone -= len(arena.params)
    if alone > 0:
        done = {id(param) for arena in together for param in arena.params}
        for param in params:
            if id(param) not in done:
                param.update()


class Joint(NamedTuple):
    """The rules of an arena's parameters if one rule for the vector can replace them, valid while
    the structure is ``seen``.
    """

    seen: object
    rules: list[UpdateRule]  # none: each parameter is updated alone


def is_whole(arena: Arena) -> bool:
    """Whether updating the arena's vector is the same as updating each parameter: equal rules,
    counts, and all gradients.
    """
    joint = arena.joint
    if joint is None or joint.seen is not structure.now:
        arena.joint = joint = Joint(structure.now, _joined(arena))
        if (
            arena.whole is not None
            and joint.rules
            and not arena.whole.rule.stands_with(joint.rules[0])
        ):
            arena.whole = None  # the parameters have got other rules since
    if not (joint.rules and arena.gradients_at_home()):
        return False
    t = joint.rules[0].t
    for rule in joint.rules:  # noqa: SIM110 - a call less, in each step
        if rule.t != t:
            return False
    return True


def _joined(arena: Arena) -> list[UpdateRule]:
    first: Any = arena.params[0].update_rule
    kind = type(first)
    if (
        first is None
        or not first.elementwise
        or kind.update is not UpdateRule.update
        or kind._update is not UpdateRule._update
    ):
        return []
    if len(arena.params) == 1:
        return []  # nothing to join
    for param, view, _ in arena.members:
        rule = param.update_rule
        if (
            rule is None
            or not rule.stands_with(first)
            or type(param).update is not Parameter.update
            or param.array is not view
        ):
            return []
    return [param.update_rule for param in arena.params]
