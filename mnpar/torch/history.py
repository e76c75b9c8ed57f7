"""The communications of a rank's PyTorch program, in their order, and the edges that join them.

PyTorch's backward visits a function only if a gradient reaches it, and only once all functions that
used its outputs have been visited. Communications need more: a peer may wait for the gradient of
one that no loss depends on (law 4), and all must be visited in the reverse of the order in which
they ran (law 3). So each communication takes an empty tensor, its *token*, from the one before,
and hands one on to the next. A backward that starts from the latest token visits them all, the
latest first, whatever else PyTorch's engine prefers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from weakref import WeakKeyDictionary

import torch

from mnpar.autograd.tape import Tape, current_tape
from mnpar.runtime.callsite import is_between, site_of


def new_token() -> torch.Tensor:
    """Return the token that the first communication takes."""
    return torch.zeros(0, requires_grad=True)


class History:
    """The communications that a backward has to visit.

    Attributes:
        token: of the latest communication.
        root: the token that the first one took.
        keeps: whether the pass that is under way keeps the history for another.
        begun: how many there were when :func:`mnpar.torch.backward` began; None: no such pass is
            under way.
    """

    def __init__(self) -> None:
        self.token = self.root = new_token()
        self.keeps = False
        self.begun: int | None = None
        self._records: list[str] = []  # their labels, by number
        # in a pass: how many have still to be visited; None: no pass is under way
        self._left: int | None = None

    def __len__(self) -> int:
        return len(self._records)

    def add(self, label: str) -> int:
        """Record a communication; return its number, for :meth:`visit`."""
        self._records.append(label)
        return len(self._records) - 1

    def visit(self, number: int, records: bool) -> None:
        """Note that backward visits a communication.

        Args:
            number: of the communication.
            records: whether this pass is differentiable itself, and so keeps the history.

        Raises:
            RuntimeError: a later one was not visited, or an earlier pass has used the history up.
        """
        if number >= len(self._records):
            raise RuntimeError(_USED_UP.format(site=_site_of_backward()))
        left = len(self._records) if self._left is None else self._left
        if self.begun and (number >= self.begun or (self._left is None and left > self.begun)):
            label = self._records[max(number, self.begun)]
            self.clear()
            raise RuntimeError(_REPEATED.format(label=label))
        if number != left - 1:
            label = self._records[left - 1]
            visited = self._records[number]
            self.clear()
            raise RuntimeError(_MISSED.format(label=label, visited=visited))
        self._left = number
        if number == 0:
            self._left = None
            if not (self.keeps or records):
                self.clear()

    def clear(self) -> None:
        """Forget all communications."""
        self._records.clear()
        self._left = None
        self.token = self.root = new_token()


_TORCH = str(Path(torch.__file__).parent) + os.sep


def _site_of_backward() -> str:
    """Return the source line from which PyTorch's backward was called."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        filename = frame.f_code.co_filename
        if not (is_between(filename) or filename.startswith(_TORCH)):
            break
        frame = frame.f_back
    return site_of(frame)


_USED_UP = (
    "the backward at {site} comes to a communication that an earlier backward has visited already. "
    "If there are to be two: mnpar.torch.backward(loss, retain_graph=True) for the first"
)
_MISSED = (
    "backward has passed over {label}, whose gradient another rank waits for: the loss does not "
    "depend on it, and {visited} was visited. Call mnpar.torch.backward(loss), on every rank, in "
    "place of loss.backward(): it visits all communications"
)

_REPEATED = (
    "{label} was called while backward ran, as torch.utils.checkpoint calls again what it did not "
    "keep: communicate outside of what it calls"
)

_histories: WeakKeyDictionary[Tape, History] = WeakKeyDictionary()


def current_history() -> History:
    """Return the history that goes with this rank's tape."""
    tape = current_tape()
    history = _histories.get(tape)
    if history is None:
        history = _histories[tape] = History()
    return history
