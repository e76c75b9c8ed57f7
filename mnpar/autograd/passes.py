"""The pass of backward that a rank is in: its identity, which the messages of gradients carry.

One forward may be differentiated several times: by :func:`mnpar.grad` for a penalty, and then by
:func:`mnpar.backward`. All ranks that communicated run the same passes, one by one, because each
pass exchanges gradients of the same communications. A message of one pass must not be taken for one
of another. So each message says in which kind of pass it was sent, whether that pass is recorded,
and whether it keeps the tape for a further pass. If two ranks agree on these three in each message,
they also agree on the number of passes: the last pass over a tape is the one that does not keep it.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

from mnpar.configuration import recording


class BackwardPass(recording):
    """A pass of backward, current inside a ``with`` block, in which functions are recorded or not.

    Args:
        record: whether the pass itself is to be differentiable.
        keeps_tape: whether another pass over the same tape may follow.
        to_targets: whether it computes the gradients of some variables only (:func:`mnpar.grad`).
        site: the source line that called it, if the tape has communications.
    """

    __slots__ = ("_before", "header_fields", "keeps_tape", "site", "to_targets")

    def __init__(
        self,
        record: bool = False,
        keeps_tape: bool = False,
        to_targets: bool = False,
        site: str = "",
    ) -> None:
        self._on = record
        self.keeps_tape = keeps_tape
        self.to_targets = to_targets
        self.site = site
        # what headers say of it, once this rank has made one
        self.header_fields: tuple[int, int] | None = None

    def __enter__(self) -> None:
        recording.__enter__(self)
        self._before: Token[BackwardPass | None] = _current.set(self)

    def __exit__(self, *error: object) -> None:
        _current.reset(self._before)
        recording.__exit__(self, *error)


_current: ContextVar[BackwardPass | None] = ContextVar("mnpar.autograd.passes", default=None)


def current_pass() -> BackwardPass:
    """Return the pass that this rank is in; one without further properties if it is in none."""
    return _current.get() or BackwardPass()
