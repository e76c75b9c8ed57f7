"""A hook that refuses communications while a function runs that cannot be their place."""

from __future__ import annotations

from typing import Any

from mnpar.backend import Array
from mnpar.function_hook import FunctionHook


class NoMessages(FunctionHook):
    """Raises RuntimeError before a message leaves, in a ``with`` block.

    Args:
        why: the error's text, in which ``{label}`` is the communication.
    """

    def __init__(self, why: str) -> None:
        self.why = why
        self.name = f"no messages {id(self)}"  # they may be nested

    def forward_preprocess(self, function: Any, in_data: tuple[Array | None, ...]) -> None:
        """Refuse a communication."""
        if function.communicates:
            raise RuntimeError(self.why.format(label=function.label))
