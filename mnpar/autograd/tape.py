"""The tape: which communications backward has to visit, whatever the graph says (law 4)."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

from mnpar.autograd.passes import BackwardPass
from mnpar.runtime.callsite import warn_user


class Tape:
    """The communications that a rank recorded, in the order in which it made them.

    There is always a current one. ``with Tape():`` gives a block of its own, so that several
    forwards can be under way before the first backward (micro-batches); a backward replays the tape
    that is current where it is called, then empties it.

    Example:
        >>> import numpy as np, mnpar
        >>> tape = mnpar.Tape()
        >>> with tape:
        ...     y = mnpar.Variable(np.ones(1)) * 3
        >>> with tape:
        ...     y.backward()
    """

    # so many communications without a backward are most likely a loop that has forgotten it, or an
    # evaluation that records
    LONG = 10_000

    def __init__(self) -> None:
        self.records: list[Any] = []  # FunctionNodes; this file is below theirs
        # complete non-blocking communications that nobody has waited for yet
        self.pending: list[Callable[[], Any]] = []
        # advance transfers during a backward; called after each function
        self.transfers: list[Callable[[], None]] = []
        # the backward that visits this tape now, if the tape has communications
        self.current_pass: BackwardPass | None = None
        # the communicators over which gradients went in the last backward, each with a
        # communication and its line; not for functions of divided arrays, whose Parameters all
        # ranks have, with whole gradients
        self.crossed: dict[Any, tuple[str, str]] = {}
        self._tokens: list[Token[Tape | None]] = []

    def complete(self) -> Tape:
        """Complete non-blocking communications, which backward visits whether their results were
        used or not; return the tape.
        """
        while self.pending:
            self.pending[0]()  # removes itself from the list
        return self

    def append(self, function: Any) -> None:
        """Record a communication."""
        function.on_tape = True
        self.records.append(function)
        if len(self.records) == self.LONG:
            warn_user(
                f"{self.LONG} communications were recorded and no backward ran, for which all of "
                f"them are kept; the last is {function.label}. In each step of a training loop "
                "every rank calls backward, mnpar.backward() if it has no loss; an evaluation runs "
                "under `with mnpar.no_backprop_mode():`"
            )

    def clear(self) -> None:
        """Remove all communications: they were visited, or a failed backward has left them
        unusable.
        """
        self.current_pass = None
        self.crossed = {}
        for function in self.records:
            function.on_tape = False
            divided = getattr(function, "of_divided", False)
            if function.comm is not None and not function.silent_backward and not divided:
                self.crossed[function.comm] = function.op or function.label, function.site
        self.records.clear()

    def __enter__(self) -> Tape:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._tokens.pop())


_current: ContextVar[Tape | None] = ContextVar("mnpar.autograd.tape", default=None)


def current_tape() -> Tape:
    """Return the tape on which this rank's communications are recorded now."""
    tape = _current.get()
    if tape is None:
        tape = Tape()
        _current.set(tape)
    return tape


def advance_transfers() -> None:
    """Advance transfers that overlap with backward; functions that take long call it between their
    parts.
    """
    for advance in current_tape().transfers:
        advance()
