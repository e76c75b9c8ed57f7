"""DropConnect: a linear layer that drops weights at random."""

from __future__ import annotations

from typing import Any

from mnpar.configuration import config
from mnpar.functions import simplified_dropconnect
from mnpar.links.linear import Linear
from mnpar.variable import Variable


class SimplifiedDropconnect(Linear):
    """A linear layer whose weights are set to 0 with probability ``ratio`` while ``config.train``
    is on.

    Args:
        in_size: D; None takes it from the first batch.
        out_size: outputs.
        ratio: the probability that a weight is dropped.
        nobias: no b.
        initialW, initial_bias: initializers of W (out_size, D) and b; None is LeCunNormal and 0.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.SimplifiedDropconnect(3, 2)(np.ones((4, 3), "f4")).shape
        (4, 2)

    Source:
        Wan et al., "Regularization of neural networks using DropConnect", ICML 2013.
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        ratio: float = 0.5,
        nobias: bool = False,
        initialW: Any = None,
        initial_bias: Any = None,
    ) -> None:
        super().__init__(in_size, out_size, nobias, initialW, initial_bias)
        self.ratio = ratio

    def forward(  # type: ignore[override]
        self, x: Any, train: bool = True, mask: Any = None, use_batchwise_mask: bool = True
    ) -> Variable:
        """The layer's outputs.

        Args:
            x: (N, …), with the axes after the first flattened to D.
            train, mask, use_batchwise_mask: as of :func:`mnpar.functions.simplified_dropconnect`;
                with ``config.train`` off nothing is dropped either.

        Returns:
            (N, out_size).
        """
        if not self.W.is_initialized:
            self._take_size(x, 1)
        drop = train and config.train
        return simplified_dropconnect(x, self.W, self.b, self.ratio, drop, mask, use_batchwise_mask)
