"""Keyword arguments taken out of ``**kwargs`` by name, as Chainer's functions take theirs."""

from __future__ import annotations

import sys
from typing import Any


def check_unexpected_kwargs(kwargs: dict[str, Any], **unexpected: str) -> None:
    """Raise ValueError with the message of the first unexpected name that is in ``kwargs``.

    Args:
        kwargs: the arguments that were given.
        unexpected: for a name, the message.

    Example:
        >>> from mnpar.utils.argument import check_unexpected_kwargs
        >>> check_unexpected_kwargs({"train": True}, train="use using_config('train', …)")
        Traceback (most recent call last):
        ValueError: use using_config('train', …)
    """
    for name, message in unexpected.items():
        if name in kwargs:
            raise ValueError(message)


def parse_kwargs(
    kwargs: dict[str, Any], *name_and_values: tuple[str, Any], **unexpected: str
) -> tuple[Any, ...]:
    """Take named arguments out of ``kwargs``, and return their values.

    Args:
        kwargs: a function's; what is taken is removed.
        name_and_values: names and defaults.
        unexpected: for a name that must not be there, the message.

    Raises:
        TypeError: there are others; it names the function that called this. ValueError: one of
            them is in ``unexpected``.

    Example:
        >>> from mnpar.utils.argument import parse_kwargs
        >>> def f(**kwargs):
        ...     return parse_kwargs(kwargs, ("a", 1), ("b", 2))
        >>> f(b=3)
        (1, 3)
        >>> f(c=3)
        Traceback (most recent call last):
        TypeError: f() got unexpected keyword argument(s) 'c'
    """
    values = tuple([kwargs.pop(name, default) for name, default in name_and_values])
    _check_empty(kwargs, unexpected)
    return values


def assert_kwargs_empty(kwargs: dict[str, Any]) -> None:
    """Raise TypeError if there are arguments left in ``kwargs``.

    Example:
        >>> from mnpar.utils.argument import assert_kwargs_empty
        >>> assert_kwargs_empty({})
    """
    _check_empty(kwargs, {})


def _check_empty(kwargs: dict[str, Any], unexpected: dict[str, str]) -> None:
    if kwargs:
        check_unexpected_kwargs(kwargs, **unexpected)
        caller = sys._getframe(2).f_code.co_name
        names = ", ".join(map(repr, sorted(kwargs)))
        raise TypeError(f"{caller}() got unexpected keyword argument(s) {names}")
