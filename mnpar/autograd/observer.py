"""The observer of a rank's training: it is told of each backward and of each step of an optimizer.

Training knows nothing of who observes it; mnpar.check does, to compare runs on several numbers of
ranks. Without an observer each backward and each step looks up one context variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from mnpar.backend import Array


class Observer(Protocol):
    """An observer of one rank; its methods must not change what they are given."""

    def backward_begins(self) -> None:
        """Called before a backward, be it inside another one."""

    def backward_ends(self, losses: Sequence[tuple[Array, Any]], loss_scale: float | None) -> None:
        """Called after a backward, with the arrays that it started from, each with the gradient
        that it started with, an array or a number, in which the loss scale is a factor.
        """

    def weighed(self, factor: float) -> None:
        """Called in a backward that ends with the mean of the ranks' gradients: this rank's loss
        counts in it by this factor, 1 if all count alike.
        """

    def stepped(self, optimizer: Any) -> None:
        """Called after an optimizer has changed its parameters."""


_observer: ContextVar[Observer | None] = ContextVar("mnpar.observer", default=None)
observer = _observer.get  # the calling rank's, or None


@contextmanager
def observing(one: Observer) -> Iterator[None]:
    """Let an observer hear of this rank's training inside a ``with`` block."""
    token = _observer.set(one)
    try:
        yield
    finally:
        _observer.reset(token)
