"""Updates of whole arenas: where all parameters of one follow the same rule, element by element, it is applied to the vector.

Each rule keeps its state, as views of vectors too, so nothing that a program sees is different. Where a parameter is another
case (its own hyperparameters or hooks, no gradient, a rule that looks at the parameter as a whole) each is updated alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from mnpar.arena import Arena
from mnpar.backend import Array
from mnpar.optimizers.update_rule import UpdateRule
from mnpar.parameter import Parameter


class Whole:
    """An arena's vector as one parameter, with a rule for it.

    Args:
        arena: of parameters whose rules are alike.
    """

    def __init__(self, arena: Arena) -> None:
        self.param = Parameter(arena.data)
        self.rule = copy.copy(arena.params[0].update_rule)
        self.rule.state = {}
        self.rule.prepare(self.param)
        self._views: dict[str, list[Array]] = {
            name: [vector[place].reshape(param.array.shape) for param, place in zip(arena.params, arena.slices, strict=True)]
            for name, vector in self.rule.state.items()
        }
        self.gather(arena)

    def gather(self, arena: Arena) -> bool:
        """Let the rules' states be views of the vectors; False if one of them has lost its state since."""
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

    def step(self, arena: Arena) -> None:
        """Change the values by the gradients."""
        self.param.node.gradient = arena.grad
        self.rule.t = arena.params[0].update_rule.t + 1
        self.rule.update_core(self.param)
        self.param.node.gradient = None
        for param in arena.params:
            param.update_rule.t = self.rule.t


def update(params: Iterable[Parameter], arenas: Iterable[Arena]) -> None:
    """Update parameters, those of an arena together where that is the same."""
    done: set[int] = set()
    for arena in arenas:
        if _alike(arena):
            if arena.whole is None or not arena.whole.gather(arena):
                arena.whole = None
                arena.whole = Whole(arena)
            arena.whole.step(arena)
            done.update([id(param) for param in arena.params])
    for param in params:
        if id(param) not in done:
            param.update()


def _alike(arena: Arena) -> bool:
    first: Any = arena.params[0].update_rule
    kind = type(first)
    if first is None or not first.elementwise or kind.update is not UpdateRule.update or kind._update is not UpdateRule._update:
        return False
    if len(arena.params) == 1:
        return False  # nothing to join
    for param in arena.params:
        rule = param.update_rule
        if type(rule) is not kind or not rule.stands_with(first) or type(param).update is not Parameter.update:
            return False
    return arena.at_home()
