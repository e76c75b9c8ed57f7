"""Loss scaling: float16 gradients below 6e-8 become 0, so losses are multiplied before backward and
gradients divided after.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from mnpar import backend
from mnpar.backend import Array
from mnpar.errors import MismatchError
from mnpar.serializer import AbstractSerializer

if TYPE_CHECKING:
    from mnpar.communicators.communicator import Communicator
    from mnpar.optimizers.model_holders import ModelHolders


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
            the step. None: those that hold the model together, as the optimizer knows them.

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

    def accept(self, gradients: Iterable[Array], holders: ModelHolders | None = None) -> bool:
        """Return whether the step can be taken; change the scale.

        All ranks of ``comm`` call it; without ``comm`` all that hold the model together.

        Args:
            gradients: of this rank's parameters.
            holders: the ranks that hold the model; None: this one alone.

        Raises:
            MismatchError: they have other scales; RuntimeError: they are not known.
        """
        finite = all([bool(backend.get_array_module(g).isfinite(g).all()) for g in gradients])
        facts = np.array([not finite, self.scale, -self.scale], np.float64)
        if holders is not None:
            if self.comm is None:
                holders.check_crossed("loss_scaling()")
            else:
                holders.check_comm(self.comm, "loss_scaling(comm=…)")
            facts = holders.largest(facts, self.comm)
        elif self.comm is not None:
            facts = self.comm.allreduce(facts, op="max")
        overflowed, largest, smallest = facts.tolist()
        finite = not overflowed
        if largest != -smallest:
            raise MismatchError(_SCALES.format(self.scale, -smallest, largest))
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

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Save or load a scale that changes; one that was not saved (Chainer does not) begins
        anew.
        """
        if self.interval:
            with suppress(KeyError):
                self.scale = float(serializer("scale", self.scale))
                self.good = int(serializer("good", self.good))
                self.overflowed = bool(serializer("overflowed", self.overflowed))


_SCALES = (
    "loss scaling: the scale is {} here, and {} to {} on the ranks that hold the model together, "
    "so that gradients which go from one to another have different scales: call loss_scaling() "
    "alike on all of them, before the same update"
)
