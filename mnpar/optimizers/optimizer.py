"""Optimizers: one update rule for each parameter, hyperparameters that the rules share, and hooks before and after."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from mnpar.arena import Arenas
from mnpar.link import Link
from mnpar.optimizers.fp32 import in_float32
from mnpar.optimizers.loss_scaling import LossScaling
from mnpar.optimizers.update_rule import Hyperparameter, UpdateRule, add_hook, unscale
from mnpar.variable import backward


class Optimizer:
    """Changes the parameters of a link by their gradients.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> model = L.Linear(2, 1, initialW=0)
        >>> optimizer = mnpar.optimizers.SGD(lr=1.0).setup(model)
        >>> optimizer.update(lambda x: F.sum(model(x)), np.ones((1, 2), "f4"))
        >>> model.W.array
        array([[-1., -1.]], dtype=float32)
    """

    def __init__(self) -> None:
        self.t = 0  # updates so far
        self.epoch = 0
        self.target: Any = None
        self._loss_scale: float | None = None
        self._scaling: LossScaling | None = None
        self._hooks: dict[str, tuple[str, Callable[..., None]]] = {}

    def setup(self, link: Link) -> Any:
        """Take on the parameters of a link; returns the optimizer.

        Raises:
            TypeError: it is not a link.
        """
        if not isinstance(link, Link):
            raise TypeError(f"an optimizer is set up for a link, not for {type(link).__name__}")
        self.target = link
        self.t = self.epoch = 0
        return self

    def _require_target(self, what: str) -> None:
        if self.target is None:
            raise RuntimeError(f"{type(self).__name__}: call setup(link) before {what}")

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """One step, to be defined by each kind of optimizer."""
        raise TypeError(f"{type(self).__name__} does not define update")

    def new_epoch(self, auto: bool = False) -> None:
        """Count an epoch."""
        self.epoch += 1

    def set_loss_scale(self, loss_scale: float | None) -> None:
        """Multiply losses by this before backward, so that float16 gradients do not vanish, and divide it out of gradients.

        Hooks see the gradients with the scale divided out. None: no scale.

        Raises:
            ValueError: the scale is not positive.
        """
        if loss_scale is not None and not loss_scale > 0:
            raise ValueError(f"a loss scale is a positive number, or None, not {loss_scale}")
        self._loss_scale, self._scaling = loss_scale, None

    @property
    def loss_scale(self) -> float | None:
        """What losses are multiplied by now."""
        return self._loss_scale

    def loss_scaling(self, interval: int = 1000, scale: float | None = None, comm: Any = None) -> None:
        """Scale losses, and leave a step out where its gradients are not finite: nothing changes then, no hook is called.

        Args:
            interval: steps without an overflow after which the scale is doubled; it is halved at each overflow.
            scale: a scale that stays; None: one that changes, from 1 on: doubled at each step until the first overflow.
            comm: ranks that step together decide together, for instance where a hook communicates; all of them update.

        Raises:
            ValueError: the scale is not positive, or the interval is less than 1.

        Example:
            >>> import mnpar, mnpar.functions as F, mnpar.links as L
            >>> import numpy as np
            >>> model = L.Linear(2, 1)
            >>> optimizer = mnpar.optimizers.SGD().setup(model)
            >>> optimizer.loss_scaling()
            >>> optimizer.update(lambda: F.sum(model(np.ones((1, 2), "f4"))))
        """
        if scale is None and interval < 1:
            raise ValueError(f"the loss scale is doubled after an interval of 1 step or more, not of {interval}")
        self._scaling = LossScaling(interval, comm=comm) if scale is None else LossScaling(0, scale, comm)
        self._loss_scale = self._scaling.scale

    def is_safe_to_update(self) -> bool:
        """Whether all gradients of this rank are finite."""
        return LossScaling(0, 1.0).accept(self._gradients())

    def _gradients(self) -> list[Any]:
        return [param.grad for param in self.target.params(include_uninit=False) if param.grad is not None]

    def add_hook(self, hook: Callable[..., None], name: str | None = None, timing: str = "auto") -> None:
        """Call a function at each step.

        Args:
            hook: called with the optimizer or, if its attribute ``call_for_each_param`` is true, with each parameter that
                has a gradient: ``hook(rule, param)``. :mod:`mnpar.optimizer_hooks` has the usual ones.
            name: to remove it by; by default ``hook.name``, or the function's name.
            timing: ``'pre'``: before the parameters change; ``'post'``: after; ``'auto'``: what ``hook.timing`` says, else pre.

        Raises:
            KeyError: there is a hook of this name; ValueError: no such timing; TypeError: it cannot be called.
        """
        add_hook(self._hooks, hook, name, timing)

    def remove_hook(self, name: str) -> None:
        """Take a hook out again; KeyError if there is none of this name."""
        del self._hooks[name]

    def call_hooks(self, timing: str = "pre") -> None:
        """Call the hooks of a timing."""
        for when, hook in self._hooks.values():
            if when != timing:
                continue
            if getattr(hook, "call_for_each_param", False):
                for param in self.target.params():
                    if param.grad is not None:
                        hook(param.update_rule, param)
            else:
                hook(self)

    def serialize(self, serializer: Any) -> None:
        """Save or load its counts and the state of each parameter's rule, under the parameter's path.

        Raises:
            RuntimeError: it was not set up: there are no rules yet.
        """
        self._require_target("serialize")
        self.t = int(serializer("t", self.t))
        self.epoch = int(serializer("epoch", self.epoch))
        for path, param in self.target.namedparams():
            rule = param.update_rule
            if rule is not None:
                if param.is_initialized:
                    rule.prepare(param)
                rule.serialize(serializer[path])


class Team(Protocol):
    """What an optimizer needs of those who step with it (parallel/data_parallel.py)."""

    @property
    def keeps(self) -> bool: ...
    def loss(self, lossfun: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> Any: ...
    def listening(self) -> AbstractContextManager[None]: ...
    def reduce(self) -> bool: ...
    def no_sync(self) -> AbstractContextManager[None]: ...
    def join(self) -> None: ...


class GradientMethod(Optimizer):
    """An optimizer that goes by the gradient: ``create_update_rule`` makes the rule of one parameter.

    Example:
        >>> import numpy as np, mnpar, mnpar.links as L
        >>> class Still(mnpar.GradientMethod):
        ...     def create_update_rule(self):
        ...         return mnpar.optimizers.SGD(lr=0.0).create_update_rule()
        >>> Still().setup(L.Linear(2, 1)).t
        0
    """

    def __init__(self) -> None:
        super().__init__()
        self.hyperparam = Hyperparameter()
        self.arenas = Arenas()
        self.team: Team | None = None  # with whom it steps: mnpar.create_multi_node_optimizer
        self._in_fp32 = False

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        raise TypeError(f"{type(self).__name__} does not define create_update_rule")

    def setup(self, link: Link) -> Any:
        """Give each parameter of a link an update rule; returns the optimizer."""
        super().setup(link)
        for param in link.params():
            param.update_rule = self._new_rule()
        self.arenas.gather(link.params())
        return self

    def _new_rule(self) -> UpdateRule:
        rule = self.create_update_rule()
        if self._in_fp32:
            rule.use_fp32_update()
        return rule

    def use_fp32_update(self, flag: bool = True) -> None:
        """Let float16 parameters be updated in float32, by a copy that each rule keeps; before ``setup`` or after it.

        During a step such a parameter is its float32 copy: hooks see that, and its gradient in float32.

        Example:
            >>> import numpy as np, mnpar
            >>> model = mnpar.Link(w=2)
            >>> model.w = mnpar.Parameter(np.ones(2, "f2"))
            >>> optimizer = mnpar.optimizers.SGD(lr=1e-4).setup(model)
            >>> optimizer.use_fp32_update()
            >>> for _ in range(100):
            ...     model.w.grad = np.ones(2, "f2")
            ...     optimizer.update()
            >>> model.w.array
            array([0.99, 0.99], dtype=float16)
        """
        self._in_fp32 = flag
        for param in () if self.target is None else self.target.params():
            if param.update_rule is not None:
                param.update_rule.use_fp32_update(flag)

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """One step.

        Args:
            lossfun: called with the other arguments; its loss is differentiated first. A rank that has no loss returns None
                (or what ``send`` or ``pseudo_connect`` returned): it takes part in the backward of the others.
                None: the gradients are there.

        A parameter without a gradient stays as it is; so do all, where :meth:`loss_scaling` finds an overflow.

        Raises:
            RuntimeError: it was not set up; TypeError: ``lossfun`` returned something that has no ``backward``.
        """
        self._require_target("update")
        if lossfun is not None:
            loss = lossfun(*args, **kwds) if self.team is None else self.team.loss(lossfun, args, kwds)
            self.differentiate(loss)
        self.step()

    def step(self) -> None:
        """The second half of an update: the parameters are changed by the gradients that are there."""
        params = list(self.target.params())
        for param in params:
            if param.update_rule is None:
                param.update_rule = self._new_rule()  # the link has grown since setup
        self.arenas.gather(params)
        if self.team is not None and not self.team.reduce():
            return
        with in_float32(params):
            for param in params:
                unscale(param)
            if self._accepted():
                self._change(params)

    def _accepted(self) -> bool:
        """Whether loss scaling, if there is any, lets the step be taken."""
        if self._scaling is None:
            return True
        accepted = self._scaling.accept(self._gradients())
        self._loss_scale = self._scaling.scale
        return accepted

    def _change(self, params: list[Any]) -> None:
        self.call_hooks("pre")
        self.t += 1
        for param in params:
            param.update()
        self.call_hooks("post")

    def differentiate(self, loss: Any) -> None:
        """The first half of an update: backward from a loss, or from none."""
        if self.team is None or not self.team.keeps:
            self.target.cleargrads()
        if not (loss is None or hasattr(loss, "backward")):
            raise TypeError(
                f"the loss function returned a {type(loss).__name__}: return a Variable, or None on a rank without a loss"
            )
        with nullcontext() if self.team is None else self.team.listening():
            if loss is None:
                backward(loss_scale=self._loss_scale)  # the gradients that come from other ranks are scaled too
            else:
                loss.backward(loss_scale=self._loss_scale)

    def no_sync(self) -> AbstractContextManager[None]:
        """Add up gradients inside a ``with`` block: its updates take no step; the next one outside takes one for all samples.

        Raises:
            RuntimeError: it was not made by :func:`mnpar.create_multi_node_optimizer`.
        """
        return self._require_team("no_sync").no_sync()

    def join(self) -> None:
        """After this rank's last update: take part in those of ranks that have more samples; all ranks call it in the end.

        Raises:
            RuntimeError: it was not made by :func:`mnpar.create_multi_node_optimizer`.
        """
        self._require_team("join").join()

    def _require_team(self, what: str) -> Team:
        if self.team is None:
            raise RuntimeError(f"{what} is for optimizers of several ranks: mnpar.create_multi_node_optimizer makes them")
        return self.team


def hyperparameter(name: str) -> Any:
    """A property of an optimizer that stands for one of its hyperparameters."""

    def read(optimizer: GradientMethod) -> Any:
        return optimizer.hyperparam.get(name)

    def write(optimizer: GradientMethod, value: Any) -> None:
        setattr(optimizer.hyperparam, name, value)

    return property(read, write, doc=f"The hyperparameter {name}.")
