"""Hyperparameters of optimizers: each is declared once, in the optimizer's class.

    class SGD(GradientMethod):
        rule = SGDRule
        lr: float = hyper(default=0.01)

declares an argument of the class, its default, an attribute of its optimizers, and a value of their
``hyperparam``, which the rules of all parameters read.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from typing import Any

from mnpar.parameter import structure


class Hyperparameter:
    """The hyperparameters of an update rule or an optimizer; a rule inherits those that it does not
    set from the optimizer.

    Args:
        parent: the optimizer's, from which missing values are taken; None: there is none.

    Example:
        >>> from mnpar.optimizers import Hyperparameter
        >>> general = Hyperparameter()
        >>> general.lr = 0.1
        >>> own = Hyperparameter(general)
        >>> own.lr
        0.1
    """

    def __init__(self, parent: Hyperparameter | None = None) -> None:
        self.parent = parent

    def __setattr__(self, name: str, value: Any) -> None:
        # parameters, or a link
        if isinstance(value, Iterator | list | tuple) or hasattr(value, "params"):
            given = type(value).__name__
            raise TypeError(
                f"{name} is a number, not {given}: an optimizer gets a model's parameters by "
                "setup(model)"
            )
        object.__setattr__(self, name, value)
        if self.parent is not None:  # a rule's own; the optimizer's are the same for all rules
            structure.change()
        else:
            structure.tune()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        structure.change()

    def get(self, name: str) -> Any:
        """Return the value here, or else the parent's.

        Raises:
            AttributeError: neither has one.
        """
        here: Hyperparameter | None = self
        while here is not None:
            if name in here.__dict__:
                return here.__dict__[name]
            here = here.parent
        raise AttributeError(f"no hyperparameter {name!r} was set")

    def __getattr__(self, name: str) -> Any:  # only where the attribute is not set here
        if name.startswith("_") or name == "parent":
            raise AttributeError(name)  # asked by copy and pickle, before there is a parent
        return self.get(name)

    def get_dict(self) -> dict[str, Any]:
        """Return all values, those from the parent included."""
        inherited = {} if self.parent is None else self.parent.get_dict()
        return {**inherited, **{k: v for k, v in self.__dict__.items() if k != "parent"}}

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in sorted(self.get_dict().items())]
        return f"{type(self).__name__}({', '.join(values)})"


class HyperparameterProxy:
    """An attribute of an optimizer that stands for one of its hyperparameters.

    Args:
        attr_name: the hyperparameter's; empty: the attribute's own.
        default: of the argument of the optimizer's class; without one there is no argument.
    """

    def __init__(self, attr_name: str, default: Any = inspect.Parameter.empty) -> None:
        self.name = attr_name
        self.default = default
        self.__doc__ = f"The hyperparameter {attr_name}."

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name
        self.__doc__ = f"The hyperparameter {self.name}."

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        return self if optimizer is None else optimizer.hyperparam.get(self.name)

    def __set__(self, optimizer: Any, value: Any) -> None:
        setattr(optimizer.hyperparam, self.name, value)


def hyper(*, default: Any) -> Any:
    """Declare a hyperparameter in the class of an optimizer, under the attribute's name."""
    return HyperparameterProxy("", default)


def signature_of(cls: type[Any]) -> inspect.Signature:
    """Return the arguments of an optimizer's class: those that its bases declare, then its own."""
    declared = {
        proxy.name: inspect.Parameter(
            proxy.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=proxy.default
        )
        for base in reversed(cls.__mro__)
        for proxy in vars(base).values()
        if isinstance(proxy, HyperparameterProxy) and proxy.default is not inspect.Parameter.empty
    }
    return inspect.Signature(list(declared.values()))


def signature_of_init(cls: type[Any]) -> inspect.Signature:
    """Return the arguments of a class that has ``__init__`` of its own."""
    init = inspect.signature(cls.__init__)
    return init.replace(parameters=list(init.parameters.values())[1:])


def check_arguments(cls: type[Any], given: Collection[str]) -> None:
    """Raise TypeError if a class of optimizers takes no argument of one of these names; it tells
    those that there are.
    """
    if not given:
        return
    params = inspect.signature(cls).parameters
    if any([param.kind is inspect.Parameter.VAR_KEYWORD for param in params.values()]):
        return
    for name in given:
        if name in params:
            continue
        rate = next((one for one in RATES if one in params), "")
        here = rate if name in (*RATES, "learning_rate", "eta") else ELSEWHERE.get(name, "")
        told = f": mnpar has {here}" if here else ""
        raise TypeError(
            f"{cls.__name__} takes {', '.join(params) or 'no arguments'}, and no {name!r}{told}"
        )


RATES = ("alpha", "lr")  # Chainer's optimizers have one of them
# Arguments of other libraries' optimizers, or of others of Chainer's: what is set by an argument
# elsewhere, momentum or a weight decay, is another optimizer or a hook here.
ELSEWHERE = {
    **dict.fromkeys(("betas", "beta_1", "beta_2"), "beta1 and beta2"),
    **dict.fromkeys(
        ("weight_decay", "l2", "decay"),
        "optimizer.add_hook(mnpar.optimizers.hooks.WeightDecay(rate)) after setup",
    ),
    **dict.fromkeys(
        ("clipnorm", "max_grad_norm"),
        "optimizer.add_hook(mnpar.optimizers.hooks.GradientClipping(norm)) after setup",
    ),
    "epsilon": "eps",
    "momentum": "mnpar.optimizers.MomentumSGD",
    "mu": "momentum, in mnpar.optimizers.MomentumSGD",
    "nesterov": "mnpar.optimizers.NesterovAG",
    "params": "setup(model), which gives an optimizer its parameters",
}
