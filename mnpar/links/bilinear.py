"""A layer of two inputs."""

from __future__ import annotations

from typing import Any

from mnpar import initializers
from mnpar.functions import bilinear
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class Bilinear(Link):
    """y_l = Σ_jk e1_j e2_k W_jkl, and with biases e1 V1 + e2 V2 + b.

    Args:
        left_size, right_size: features J and K of the two inputs.
        out_size: L.
        nobias: without V1, V2 and b.
        initialW: initializer of W (J, K, L); None is LeCunNormal.
        initial_bias: initializers of V1 (J, L), V2 (K, L) and b (L,), a tuple; None is LeCunNormal,
            LeCunNormal and 0.

    Raises:
        ValueError: ``initial_bias`` is neither a tuple nor None.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.Bilinear(2, 3, 4)(np.ones((5, 2), "f4"), np.ones((5, 3), "f4")).shape
        (5, 4)

    Source:
        Socher et al., "Reasoning with neural tensor networks for knowledge base completion", NIPS
        2013.
    """

    def __init__(
        self,
        left_size: int,
        right_size: int,
        out_size: int,
        nobias: bool = False,
        initialW: Any = None,
        initial_bias: Any = None,
    ) -> None:
        super().__init__()
        self.in_sizes, self.nobias = (left_size, right_size), nobias
        self.W = Parameter(
            initializers._get_initializer(initialW), (left_size, right_size, out_size)
        )
        self.V1 = self.V2 = self.b = None
        if nobias:
            return
        if initial_bias is not None and not (
            isinstance(initial_bias, tuple) and len(initial_bias) == 3
        ):
            raise ValueError(
                "Bilinear: initial_bias is None or initializers of V1, V2 and b, not "
                f"{initial_bias!r}"
            )
        initial = [
            initializers._get_initializer(value) for value in (initial_bias or (None, None, 0))
        ]
        self.V1 = Parameter(initial[0], (left_size, out_size))
        self.V2 = Parameter(initial[1], (right_size, out_size))
        self.b = Parameter(initial[2], (out_size,))

    def forward(self, e1: Any, e2: Any) -> Variable:
        """(N, J), (N, K) → (N, L)."""
        return bilinear(e1, e2, self.W, self.V1, self.V2, self.b)
