"""The pass of backward that a rank is in: its identity, which the messages of gradients carry.

One forward may be differentiated several times: by :func:`mnpar.grad` for a penalty, and then by
:func:`mnpar.backward`. All ranks that communicated run the same passes, one by one, because each
pass exchanges gradients of the same communications. A message of one pass must not be taken for one
of another. So each message says in which kind of pass it was sent, whether that pass is recorded,
whether it keeps the tape for a further pass, and by what it scales losses. If two ranks agree on
the first three in each message, they also agree on the number of passes: the last pass over a tape
is the one that does not keep it. Gradients of two scales must not meet, as each rank divides its
parameters' by its own.
"""

from __future__ import annotations


class BackwardPass:
    """A pass of backward: that which a tape's ``current_pass`` is, while backward visits the tape.

    Args:
        keeps_tape: whether another pass over the same tape may follow.
        to_targets: whether it computes the gradients of some variables only (:func:`mnpar.grad`).
        loss_scale: multiplies the gradients that it starts from.
        site: the source line that called it.
    """

    __slots__ = ("header_fields", "keeps_tape", "loss_scale", "site", "to_targets")

    def __init__(
        self, keeps_tape: bool, to_targets: bool, loss_scale: float | None, site: str
    ) -> None:
        self.keeps_tape = keeps_tape
        self.to_targets = to_targets
        self.loss_scale = 1.0 if loss_scale is None else loss_scale
        self.site = site
        # what headers say of it, once this rank has made one
        self.header_fields: tuple[int, int, int] | None = None
