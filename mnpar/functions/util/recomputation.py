"""A forward that backward repeats, and what the repetition must find as it was: random numbers, the
mode, and values that links change whenever they are called.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from mnpar.configuration import config, using_config
from mnpar.random import generator

T = TypeVar("T")


class Recomputation:
    """The state before a forward, and the values that it remembers for its repetitions.

    Example:
        >>> from mnpar.functions.util.recomputation import Recomputation, remembered
        >>> calls = []
        >>> def call():
        ...     return remembered(lambda: calls.append(0) or len(calls))
        >>> one, other = Recomputation(), Recomputation()
        >>> with one.forward():
        ...     first = call()
        >>> with other.forward():
        ...     second = call()
        >>> with one.again():
        ...     first, second, call()
        (1, 2, 1)
    """

    def __init__(self) -> None:
        self._numbers = copy.deepcopy(generator().bit_generator.state)
        self._train = config.train
        self._values: list[Any] = []

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Remember values of the forward, in a ``with`` block; also for those around it."""
        around, source = _active.get()
        token = _active.set(((*around, self), source))
        try:
            yield
        finally:
            _active.reset(token)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Repeat the forward, in a ``with`` block; as often as is wanted."""
        numbers = generator().bit_generator
        now, numbers.state = numbers.state, self._numbers
        token = _active.set(((), iter(self._values)))
        try:
            with using_config("train", self._train), using_config("in_recomputing", True):
                yield
        finally:
            _active.reset(token)
            numbers.state = now


# the forwards that remember values, and from where a repetition takes them
_active: ContextVar[tuple[tuple[Recomputation, ...], Iterator[Any] | None]] = ContextVar(
    "mnpar.recomputation", default=((), None)
)


def is_remembering() -> bool:
    """Return whether a repetition will ask for what :func:`remembered` returns now, or asks."""
    around, source = _active.get()
    return bool(around) or source is not None


def remembered(compute: Callable[[], T]) -> T:
    """Return ``compute()``; in a repetition what it returned in the forward, where it was called in
    the same order.

    Args:
        compute: returns values that are not changed in place later.

    Raises:
        RuntimeError: the repetition asks for more values than the forward.
    """
    around, source = _active.get()
    if source is None:
        value = compute()
    else:
        try:
            value = next(source)
        except StopIteration:
            raise RuntimeError(
                "what backward computes again calls more layers than the forward did: it must do "
                "the same each time, whatever has changed in between"
            ) from None
    for one in around:
        one._values.append(value)
    return value
