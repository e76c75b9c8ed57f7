"""Momentum beyond MomentumSGD: corrected, Nesterov's, and that which can be given to any other
optimizer.

:func:`apply_momentum` derives classes: the optimizer's own rule with one more state, the velocity.
So all that is done with rules and their states (float32 updates, shards, meshes, snapshots, whole
buffers) is done with these as with any other.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import numpy as np

from mnpar.kernels import updates
from mnpar.kernels.blocks import blocks
from mnpar.optimizers.gradient_method import GradientMethod
from mnpar.optimizers.hyperparameter import FRACTION, NONNEGATIVE, HyperparameterProxy, hyper
from mnpar.optimizers.update_rule import UpdateRule, zeros_like
from mnpar.parameter import Parameter


class CorrectedMomentumSGDRule(UpdateRule):
    """v ← μ v − g,  p ← p + lr · v"""

    elementwise = True
    states = ("v",)  # the velocity

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        updates.corrected_momentum_sgd(
            param.array, param.grad, self.state["v"], get("lr"), get("momentum")
        )


class CorrectedMomentumSGD(GradientMethod):
    """v ← μ v − g,  p ← p + lr · v: a change of the learning rate applies to the accumulated
    velocity, too.

    Args:
        lr: the learning rate.
        momentum: μ.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.CorrectedMomentumSGD().momentum
        0.9
    """

    rule = CorrectedMomentumSGDRule
    lr: float = hyper(default=0.01, within=NONNEGATIVE)
    momentum: float = hyper(default=0.9, within=FRACTION)


class NesterovAGRule(UpdateRule):
    """v ← μ v − lr · g,  p ← p + μ v − lr · g"""

    elementwise = True
    states = ("v",)  # the velocity

    def update_core(self, param: Parameter) -> None:
        get = self.hyperparam.get
        updates.nesterov(param.array, param.grad, self.state["v"], get("lr"), get("momentum"))


class NesterovAG(GradientMethod):
    """v ← μ v − lr · g,  p ← p + μ v − lr · g (Nesterov 1983, in the form of Bengio et al. 2013,
    arXiv 1212.0901).

    This is the papers' rule, p ← p + μ² v − (1 + μ) lr · g with the v of before the step, and
    PyTorch's. Chainer 7 takes the v of after the step in that formula, so its results differ.

    Args:
        lr: the learning rate.
        momentum: μ.

    Example:
        >>> import mnpar
        >>> mnpar.optimizers.NesterovAG().lr
        0.01
    """

    rule = NesterovAGRule
    lr: float = hyper(default=0.01, within=NONNEGATIVE)
    momentum: float = hyper(default=0.9, within=FRACTION)


class _Derived:
    """A class that :func:`_derived` makes: it has no name to be found by, so copies and pickles
    make it again.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _blank, type(self).__bases__, self.__getstate__()


class RuleWithMomentum(_Derived, UpdateRule):
    """s: the step of the rule beside which this class stands;  v ← μ v + s,  p ← p + v, or
    Nesterov's p ← p + μ v + s
    """

    def init_state(self, param: Parameter) -> None:
        """Make the other rule's state, and the velocity, 0 at first."""
        super().init_state(param)
        self.state["velocity"] = zeros_like(param)

    def update_core(self, param: Parameter) -> None:
        momentum = self.hyperparam.get("momentum")
        nesterov = self.hyperparam.get("nesterov")
        # in 64 bits, whose difference is the step to the last bit
        before, after = (
            param.array,
            param.array.astype(np.float64),
        )
        _set(param, "array", after)
        try:
            super().update_core(param)
        finally:
            _set(param, "array", before)
        for p, _, v, moved in blocks(param.array, param.grad, self.state["velocity"], after):
            step = (moved - p).astype(v.dtype)
            v *= momentum
            v += step
            p += momentum * v + step if nesterov else v


class WithMomentum(_Derived, GradientMethod):
    """The part that :func:`apply_momentum` adds to an optimizer."""

    momentum = HyperparameterProxy("momentum", within=FRACTION)
    nesterov = HyperparameterProxy("nesterov")

    def create_update_rule(self) -> UpdateRule:
        """Make the rule for one parameter."""
        rule = super().create_update_rule()
        _mix(RuleWithMomentum, rule)
        return rule


Given = TypeVar("Given", bound=GradientMethod)


def apply_momentum(optimizer: Given, momentum: float = 0.9, nesterov: bool = False) -> Given:
    """Give an optimizer momentum: with s, the step that its rule would take, v ← μ v + s,  p ← p +
    v.

    Its ``momentum`` and ``nesterov`` are hyperparameters from then on. Whatever the rule does to a
    parameter is in s, AdamW's decay of weights too. MomentumSGD and NesterovAG are what this makes
    of SGD.

    Args:
        optimizer: without momentum of its own, and before ``setup``. It is changed.
        momentum: μ.
        nesterov: p ← p + μ v + s instead, with the new v (Nesterov's, as in :class:`NesterovAG`).

    Returns:
        the optimizer.

    Raises:
        ValueError: it has momentum of its own; RuntimeError: it was set up already.

    Example:
        >>> import mnpar, mnpar.links as L
        >>> optimizer = mnpar.optimizers.apply_momentum(mnpar.optimizers.RMSprop(lr=0.01))
        >>> optimizer.setup(L.Linear(2, 1)).momentum
        0.9
    """
    name = type(optimizer).__name__
    if "momentum" in optimizer.hyperparam.get_dict():
        raise ValueError(
            f"{name} has momentum already ({optimizer.hyperparam.momentum}): set its attribute "
            "momentum"
        )
    if optimizer.target is not None:
        raise RuntimeError(
            f"{name} was set up, with rules that have no momentum: "
            "apply_momentum(optimizer).setup(model)"
        )
    _mix(WithMomentum, optimizer)
    optimizer.hyperparam.belong(type(optimizer))
    optimizer.momentum = momentum
    optimizer.nesterov = nesterov
    return optimizer


def _mix(mixin: type, one: Any) -> None:
    one.__class__ = _derived(mixin, one.__class__)


@functools.cache
def _derived(mixin: type, kind: type) -> type:
    return type(
        f"{kind.__name__}WithMomentum",
        (mixin, kind),
        {"__doc__": kind.__doc__, "__module__": mixin.__module__},
    )


def _blank(mixin: type, kind: type) -> Any:
    return object.__new__(_derived(mixin, kind))


# the parameter has its array back before anybody looks: no change of the model
_set = object.__setattr__
