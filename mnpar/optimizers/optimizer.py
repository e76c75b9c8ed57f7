"""Optimizers: one update rule for each parameter, hyperparameters that the rules share, and hooks before and after.

A rule changes ``param.array`` in place and never puts another array there: gradients and parameters may be views of something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnpar import backend
from mnpar.backend import Array
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import backward


class Hyperparameter:
    """Numbers of an update rule; what a rule has none of its own of, it takes from the optimizer.

    Args:
        parent: where to look for what is not set here.

    Example:
        >>> from mnpar.optimizers import Hyperparameter
        >>> general = Hyperparameter()
        >>> general.lr = 0.1
        >>> own = Hyperparameter(general)
        >>> own.get("lr")
        0.1
    """

    def __init__(self, parent: Hyperparameter | None = None) -> None:
        self.parent = parent

    def get(self, name: str) -> Any:
        """The value here, or else the parent's."""
        if name in self.__dict__:
            return self.__dict__[name]
        if self.parent is None:
            raise AttributeError(f"no hyperparameter {name!r} was set")
        return self.parent.get(name)

    def get_dict(self) -> dict[str, Any]:
        """All values, those from the parent included."""
        inherited = {} if self.parent is None else self.parent.get_dict()
        return {**inherited, **{k: v for k, v in self.__dict__.items() if k != "parent"}}


class UpdateRule:
    """How one parameter changes; ``update_core`` says it for each kind.

    Args:
        parent_hyperparam: the optimizer's hyperparameters.

    Example:
        >>> import mnpar
        >>> class SignRule(mnpar.UpdateRule):
        ...     def update_core(self, param):
        ...         param.array -= 0.1 * param.xp.sign(param.grad)
        >>> SignRule().enabled
        True
    """

    def __init__(self, parent_hyperparam: Hyperparameter | None = None) -> None:
        self.hyperparam = Hyperparameter(parent_hyperparam)
        self.enabled = True
        self.t = 0
        self.state: dict[str, Array] = {}
        self._hooks: dict[str, tuple[str, Callable[..., None]]] = {}

    def add_hook(self, hook: Callable[..., None], name: str | None = None, timing: str = "auto") -> None:
        """Call ``hook(rule, param)`` before (``'pre'``) or after (``'post'``) each update of this parameter."""
        _add_hook(self._hooks, hook, name, timing)

    def remove_hook(self, name: str) -> None:
        """Take a hook out again."""
        del self._hooks[name]

    def init_state(self, param: Parameter) -> None:
        """Make the arrays of ``self.state``; called before the first update."""

    def update(self, param: Parameter) -> None:
        """Change the parameter, if it has a gradient and may be changed."""
        if not self.enabled or param.grad is None:
            return
        self.t += 1
        if self.t == 1 or (not self.state and self.t > 1):
            self.init_state(param)
        scale = param.node.loss_scale
        if scale is not None:
            param.grad[...] /= scale
            param.node.loss_scale = None
        _call_hooks(self._hooks, "pre", self, param)
        self.update_core(param)
        _call_hooks(self._hooks, "post", self, param)

    def update_core(self, param: Parameter) -> None:
        """The rule itself, in place on ``param.array``."""
        raise TypeError(f"{type(self).__name__} does not define update_core(self, param)")

    def serialize(self, serializer: Any) -> None:
        """Save or load how often it was called, and its state."""
        self.t = int(serializer("t", self.t))
        for name in self.state:
            self.state[name] = serializer(name, self.state[name])


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
        self._hooks: dict[str, tuple[str, Callable[..., None]]] = {}

    def setup(self, link: Link) -> Any:
        """Take on the parameters of a link; returns the optimizer."""
        if not isinstance(link, Link):
            raise TypeError(f"an optimizer is set up for a link, not for {type(link).__name__}")
        self.target = link
        self.t = self.epoch = 0
        return self

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """One step, to be defined by each kind of optimizer."""
        raise TypeError(f"{type(self).__name__} does not define update")

    def new_epoch(self, auto: bool = False) -> None:
        """Count an epoch."""
        self.epoch += 1

    def set_loss_scale(self, loss_scale: float | None) -> None:
        """Multiply losses by this before backward, so that float16 gradients do not vanish, and divide it out of gradients."""
        self._loss_scale = loss_scale

    def add_hook(self, hook: Callable[..., None], name: str | None = None, timing: str = "auto") -> None:
        """Call ``hook(optimizer)`` before (``'pre'``) or after (``'post'``) each step; rules' hooks, for each parameter."""
        _add_hook(self._hooks, hook, name, timing)

    def remove_hook(self, name: str) -> None:
        """Take a hook out again."""
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
        """Save or load its counts and the state of each parameter's rule, under the parameter's path."""
        self.t = int(serializer("t", self.t))
        self.epoch = int(serializer("epoch", self.epoch))
        for path, param in self.target.namedparams():
            rule = param.update_rule
            if rule is not None:
                if param.is_initialized and not rule.state:
                    rule.init_state(param)
                rule.serialize(serializer[path])


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

    def create_update_rule(self) -> UpdateRule:
        """The rule for one parameter."""
        raise TypeError(f"{type(self).__name__} does not define create_update_rule")

    def setup(self, link: Link) -> Any:
        """Give each parameter of a link an update rule; returns the optimizer."""
        super().setup(link)
        for param in link.params():
            param.update_rule = self.create_update_rule()
        return self

    def update(self, lossfun: Callable[..., Any] | None = None, *args: Any, **kwds: Any) -> None:
        """One step.

        Args:
            lossfun: called with the other arguments; its loss is differentiated first. A rank that has no loss returns None
                (or what ``send`` returned): it takes part in the backward of the others. None: the gradients are there.
        """
        if self.target is None:
            raise RuntimeError(f"{type(self).__name__}: call setup(link) before update")
        if lossfun is not None:
            loss = lossfun(*args, **kwds)
            self.target.cleargrads()
            if loss is None:
                backward()
            else:
                loss.backward(loss_scale=self._loss_scale)
            del loss
        self.call_hooks("pre")
        self.t += 1
        for param in self.target.params():
            if param.update_rule is None:
                param.update_rule = self.create_update_rule()  # the link has grown since setup
            param.update()
        self.call_hooks("post")


def hyperparameter(name: str) -> Any:
    """A property of an optimizer that stands for one of its hyperparameters."""

    def read(optimizer: GradientMethod) -> Any:
        return optimizer.hyperparam.get(name)

    def write(optimizer: GradientMethod, value: Any) -> None:
        setattr(optimizer.hyperparam, name, value)

    return property(read, write, doc=f"The hyperparameter {name}.")


def _add_hook(hooks: dict[str, Any], hook: Any, name: str | None, timing: str) -> None:
    if not callable(hook):
        raise TypeError(f"a hook is called: {type(hook).__name__} cannot be")
    if timing == "auto":
        timing = getattr(hook, "timing", "pre")
    if timing not in ("pre", "post"):
        raise ValueError(f"a hook's timing is 'pre', 'post' or 'auto', not {timing!r}")
    name = str(name or getattr(hook, "name", None) or getattr(hook, "__name__", type(hook).__name__))
    if name in hooks:
        raise KeyError(f"there is a hook named {name!r} already: give this one another name")
    hooks[name] = (timing, hook)


def _call_hooks(hooks: dict[str, Any], timing: str, *args: Any) -> None:
    for when, hook in hooks.values():
        if when == timing:
            hook(*args)


def zeros_like(param: Parameter) -> Array:
    """State of a rule: zeros beside the parameter."""
    return backend.get_array_module(param.array).zeros_like(param.array)
