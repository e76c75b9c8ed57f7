"""Hyperparameters of optimizers: each is declared once, in the optimizer's class.

    class SGD(GradientMethod):
        rule = SGDRule
        lr: float = hyper(default=0.01, within=NONNEGATIVE)

declares an argument of the class, its default, an attribute of its optimizers, and a value of their
``hyperparam``, which the rules of all parameters read; it must be in an interval.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from mnpar.errors import listed
from mnpar.hints import check_keywords, keyword_hint
from mnpar.parameter import structure


@dataclass(frozen=True)
class Interval:
    """The finite numbers from 0 to ``high``, which is one of them if ``closed``.

    Example:
        >>> from mnpar.optimizers import Interval
        >>> str(Interval(1.0, closed=False)), 1.0 in Interval(1.0), float("nan") in Interval(1.0)
        ('[0, 1)', True, False)
    """

    high: float = math.inf
    closed: bool = True

    def __contains__(self, number: float) -> bool:
        return 0 <= number < self.high or (self.closed and number == self.high < math.inf)

    def __str__(self) -> str:
        return f"[0, {self.high:g}{']' if self.closed and self.high < math.inf else ')'}"

    def check(self, who: str, name: str, value: Any) -> None:
        """Raise TypeError unless a hyperparameter's value is a number, and ValueError unless it is
        in the interval.
        """
        must = f"{who}: {name} must be a number in {self}, not"
        if isinstance(value, str | bytes):
            raise TypeError(f"{must} the text {value!r}: {name}=float({value!r})")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{must} {type(value).__name__}") from None
        if number not in self:
            raise ValueError(f"{must} {number!r}")


NONNEGATIVE = Interval()
FRACTION = Interval(1.0)
DECAY = Interval(1.0, closed=False)  # of a mean whose bias is divided by 1 - decay**t


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

    # of an optimizer's: its class's name, the intervals by name, and whether there can be no other
    # names; slots, so that ``__dict__`` holds nothing but values and the parent
    __slots__ = ("__dict__", "__weakref__", "_complete", "_intervals", "_whose")
    _complete: bool
    _intervals: dict[str, Interval | None]
    _whose: str

    def __init__(self, parent: Hyperparameter | None = None) -> None:
        object.__setattr__(self, "parent", parent)

    def belong(self, owner: type[Any], complete: bool = False) -> None:
        """Check values by what a class of optimizers declares.

        Args:
            owner: the class.
            complete: whether values of other names are refused.
        """
        self._whose = owner.__name__
        self._intervals = {name: proxy.within for name, proxy in declared(owner).items()}
        self._complete = complete

    def _check(self, name: str, value: Any) -> None:
        """Raise unless the optimizer can have such a hyperparameter."""
        whole = self
        while whole.parent is not None:
            whole = whole.parent
        intervals: dict[str, Interval | None] | None = getattr(whole, "_intervals", None)
        if intervals is None:
            return
        interval = intervals.get(name)
        if interval is not None:
            interval.check(whole._whose, name, value)
        elif whole._complete and name not in intervals:
            raise AttributeError(
                unknown_attribute(whole._whose, f"{whole._whose}.hyperparam", name, intervals)
            )

    def __setattr__(self, name: str, value: object) -> None:
        # parameters, or a link
        if isinstance(value, Iterator | list | tuple) or hasattr(value, "params"):
            given = type(value).__name__
            raise TypeError(
                f"{name} is a number, not {given}: an optimizer gets a model's parameters by "
                "setup(model)"
            )
        if name not in Hyperparameter.__slots__:
            self._check(name, value)
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
        within: the numbers that it may be; None: it may be anything.
    """

    def __init__(
        self,
        attr_name: str,
        default: Any = inspect.Parameter.empty,
        within: Interval | None = None,
    ) -> None:
        self.name = attr_name
        self.default = default
        self.within = within
        self.__doc__ = f"The hyperparameter {attr_name}."

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name
        self.__doc__ = f"The hyperparameter {self.name}."

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        return self if optimizer is None else optimizer.hyperparam.get(self.name)

    def __set__(self, optimizer: Any, value: Any) -> None:
        setattr(optimizer.hyperparam, self.name, value)


def hyper(*, default: Any, within: Interval | None = None) -> Any:
    """Declare a hyperparameter in the class of an optimizer, under the attribute's name.

    Args:
        default: of the argument of the class.
        within: the numbers that it may be; None: it may be anything.

    Example:
        >>> import mnpar.optimizers as O
        >>> class Damped(O.SGD):
        ...     damping: float = O.hyper(default=0.5, within=O.Interval(1.0))
        >>> Damped(damping=2)
        Traceback (most recent call last):
        ValueError: Damped: damping must be a number in [0, 1], not 2.0
    """
    return HyperparameterProxy("", default, within)


def declared(cls: type[Any]) -> dict[str, HyperparameterProxy]:
    """Return the hyperparameters that a class of optimizers and its bases declare, by name: those
    of the bases first.
    """
    return {
        proxy.name: proxy
        for base in reversed(cls.__mro__)
        for proxy in vars(base).values()
        if isinstance(proxy, HyperparameterProxy)
    }


def signature_of(cls: type[Any]) -> inspect.Signature:
    """Return the arguments of an optimizer's class: those that its bases declare, then its own."""
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=proxy.default)
            for name, proxy in declared(cls).items()
            if proxy.default is not inspect.Parameter.empty
        ]
    )


def signature_of_init(cls: type[Any]) -> inspect.Signature:
    """Return the arguments of a class that has ``__init__`` of its own."""
    init = inspect.signature(cls.__init__)
    return init.replace(parameters=list(init.parameters.values())[1:])


def check_arguments(cls: type[Any], given: Collection[str]) -> None:
    """Raise TypeError if a class of optimizers takes no argument of one of these names; it tells
    those that there are.
    """
    if given:
        check_keywords(cls.__name__, inspect.signature(cls), given)


def unknown_attribute(kind: str, who: str, name: str, known: Collection[str]) -> str:
    """Return the message about an attribute that an optimizer, or its ``hyperparam``, does not
    have.

    Args:
        kind: the name of the optimizer's class.
        who: what lacks the attribute.
        name: of the attribute.
        known: the hyperparameters.
    """
    public = ("target", "t", "epoch") if who == kind else ()
    here = keyword_hint(name, [*known, *public])
    return (
        f"{who} has no attribute {name!r}, which nothing would read{here}; "
        f"the hyperparameters are {listed(known, 16)}. "
        f"Attributes of your own belong in a subclass of {kind}"
    )
