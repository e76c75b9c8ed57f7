"""Loss scaling: float16 gradients below 6e-8 become 0, so losses are multiplied before backward and
gradients divided after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from mnpar import backend
from mnpar.backend import Array

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator


class LossScaling:
    """A dynamic loss scale: halved where gradients overflow, doubled after ``interval`` steps
    without an overflow.

    It starts from 1 and is doubled at each step until the first overflow, as Chainer's. It is
    always a power of two, so that scaling is exact (Chainer's grows by the ``interval``-th root of
    2 at each step), up to the largest that float16 holds.

    Args:
        interval: steps without an overflow before the scale is doubled; 0: the scale is fixed.
        scale: the initial scale.
        comm: ranks that update together: if a gradient overflows on one of them, all of them skip
            the step.

    Raises:
        ValueError: the interval is negative, or the scale not positive.

    Example:
        >>> import numpy as np
        >>> from mnpar.optimizers.loss_scaling import LossScaling
        >>> scaling = LossScaling(scale=8.0)
        >>> scaling.accept([np.array([np.inf])]), scaling.scale
        (False, 4.0)

    Source:
        Micikevicius et al. 2018, "Mixed precision training", arXiv 1710.03740.
    """

    LARGEST = 2.0**15

    def __init__(
        self, interval: int = 1000, scale: float = 1.0, comm: Communicator | None = None
    ) -> None:
        if interval < 0 or scale <= 0:
            raise ValueError(
                f"loss scaling: interval = {interval} is 0 or more, and scale = {scale} more than 0"
            )
        self.interval = interval
        self.scale = float(scale)
        self.comm = comm
        self.good = 0  # steps since the last overflow
        self.overflowed = False  # ever

    def accept(
        self, gradients: Iterable[Array], total: Callable[[Array], Array] = np.asarray
    ) -> bool:
        """Return whether the step can be taken; change the scale. With ``comm`` all its ranks call
        it.

        ``total`` adds up numbers over the ranks that have pieces of the gradients.
        """
        infinite = [not backend.get_array_module(g).isfinite(g).all() for g in gradients]
        finite = not total(np.array(float(sum(infinite))))
        if self.comm is not None:
            finite = bool(self.comm.allreduce(np.array(finite, "i4"), op="min"))
        if not self.interval:
            return finite
        if finite:
            self.good += 1
            if not self.overflowed or self.good % self.interval == 0:
                self.scale = min(self.scale * 2, max(self.scale, self.LARGEST))
        else:
            self.good, self.overflowed = 0, True
            self.scale = max(self.scale / 2, 1.0)
        return finite

    def serialize(self, serializer: Any) -> None:
        """Save or load a scale that changes; one that was not saved (Chainer does not) begins
        anew.
        """
        if self.interval:
            with suppress(KeyError):
                self.scale = float(serializer("scale", self.scale))
                self.good = int(serializer("good", self.good))
                self.overflowed = bool(serializer("overflowed", self.overflowed))
