"""Two forms of one definition: a function that waits, and its non-blocking twin.

Both have the arguments of the definition, and docstrings that are made from the one of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def present(
    function: Callable[..., Any],
    definition: Callable[..., Any],
    name: str,
    returns: str,
    doc: str | None,
    hidden: str = "",
) -> None:
    """Give a derived function the name, the signature and the docstring that readers see.

    Args:
        function: the derived one.
        definition: what it is derived from.
        name: its public name.
        returns: the annotation of its result.
        doc: its docstring.
        hidden: an argument of the definition that the derived function does not have.
    """
    signature = inspect.signature(definition)
    arguments = [one for one in signature.parameters.values() if one.name != hidden]
    function.__name__, function.__doc__, function.__module__ = name, doc, definition.__module__
    function.__qualname__ = ".".join([*definition.__qualname__.split(".")[:-1], name])
    function.__annotations__ = {
        **{one.name: one.annotation for one in arguments if one.annotation is not one.empty},
        "return": returns,
    }
    function.__dict__["__signature__"] = inspect.Signature(arguments, return_annotation=returns)
