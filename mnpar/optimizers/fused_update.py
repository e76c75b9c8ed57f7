"""Updates of whole flat buffers: if all parameters of a buffer have one elementwise rule, it is
applied to the buffer's vector.

The rules' states become views of vectors, too, so programs see no difference. If a parameter of the
buffer differs (its own hyperparameters or hooks, no gradient, a rule that is not elementwise), the
buffer's parameters are updated one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from mnpar.backend import Array
from mnpar.optimizers.flat_buffers import FlatBuffer
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter, structure
from mnpar.variable import Variable

_set = object.__setattr__  # a count is no change of a rule


class CommonRules(NamedTuple):
    """The rules of a buffer's parameters if one rule for the vector can replace them.

    Args:
        seen: they are valid as long as ``structure.now`` is this object.
        rules: none: each parameter is updated alone.
    """

    seen: object
    rules: list[UpdateRule]


class FusedUpdate:
    """A buffer's vector as one parameter, with a rule for it.

    Args:
        buffer: of parameters whose rules are alike.
    """

    def __init__(self, buffer: FlatBuffer) -> None:
        # no Parameter, so that setting its array does not change ``structure``
        self.param: Any = Variable(buffer.data)
        self.data = buffer.data
        self.grad = buffer.grad
        self.rule = copy.copy(buffer.params[0].update_rule)
        self.rule.state = {}
        self.rule.prepare(self.param)
        self._views: dict[str, list[Array]] = {
            name: [
                vector[place].reshape(param.array.shape)
                for param, place in zip(buffer.params, buffer.slices, strict=True)
            ]
            for name, vector in self.rule.state.items()
        }
        self.gather(buffer)

    def gather(self, buffer: FlatBuffer) -> bool:
        """Make the rules' states views of the vectors; return False if a rule has lost its state
        since the last time.
        """
        for name, views in self._views.items():
            for param, view in zip(buffer.params, views, strict=True):
                state = param.update_rule.state
                if state.get(name) is not view:
                    if name in state:
                        view[...] = state[name]
                    elif buffer.fused_update is self:
                        return False
                    state[name] = view
        return True

    def begin(self, buffer: FlatBuffer, t: int) -> None:
        """Prepare the step after ``t`` steps."""
        self.grad = buffer.grad
        _set(self.rule, "t", t + 1)

    def step(self, place: slice | None = None) -> None:
        """Update a slice of the values, or all of them, by their gradients."""
        param = self.param
        rule = self.rule
        state = rule.state
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

    def end(self, buffer: FlatBuffer) -> None:
        """Finish a step, after all slices: count it in the parameters' rules."""
        t = self.rule.t
        for param in buffer.params:
            _set(param.update_rule, "t", t)


def prepare(buffer: FlatBuffer) -> FusedUpdate | None:
    """Return what updates the parameters of a buffer together, prepared for the step; None if they
    cannot be updated so.
    """
    rules = _common_rules(buffer)
    if not (rules and buffer.is_filled()):
        return None
    t = rules[0].t
    for rule in rules:  # a call less than by all()
        if rule.t != t:
            return None
    fused: FusedUpdate | None = buffer.fused_update
    if fused is None or not fused.gather(buffer):
        buffer.fused_update = None
        buffer.fused_update = fused = FusedUpdate(buffer)
    fused.begin(buffer, t)
    return fused


def update(params: list[Parameter], buffers: Iterable[FlatBuffer]) -> None:
    """Update parameters, those of a buffer together where possible."""
    fused = [(buffer, one) for buffer in buffers if (one := prepare(buffer)) is not None]
    alone = len(params)
    for buffer, one in fused:
        one.step()
        one.end(buffer)
        alone -= len(buffer.params)
    if alone > 0:
        done = {id(param) for buffer, _ in fused for param in buffer.params}
        for param in params:
            if id(param) not in done:
                param.update()


def _common_rules(buffer: FlatBuffer) -> list[UpdateRule]:
    """Return the rules of a buffer's parameters if one for the vector can replace them, else
    none.
    """
    common = buffer.common_rules
    if common is None or common.seen is not structure.now:
        buffer.common_rules = common = CommonRules(structure.now, _find_common_rules(buffer))
        fused = buffer.fused_update
        if fused is not None and common.rules and not fused.rule.stands_with(common.rules[0]):
            buffer.fused_update = None  # the parameters have got other rules since
    rules: list[UpdateRule] = common.rules
    return rules


def _find_common_rules(buffer: FlatBuffer) -> list[UpdateRule]:
    first: Any = buffer.params[0].update_rule
    kind = type(first)
    if (
        not isinstance(first, UpdateRule)
        or not first.elementwise
        or kind.update is not UpdateRule.update
        or kind._update is not UpdateRule._update
    ):
        return []
    if len(buffer.params) == 1:
        return []  # nothing to join
    for param, view, _ in buffer.members:
        rule = param.update_rule
        if (
            rule is None
            or not rule.stands_with(first)
            or type(param).update is not Parameter.update
            or param.array is not view
        ):
            return []
    return [param.update_rule for param in buffer.params]
