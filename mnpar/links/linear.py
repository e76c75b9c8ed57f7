"""The fully connected layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import initializers
from mnpar.functions import linear
from mnpar.functions.connection.linear import no_features
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class Linear(Link):
    """y = x Wᵀ + b.

    Args:
        in_size: D, the features of an example, flattened; None (or only one size given) takes it
            from the first batch.
        out_size: the features of an output.
        nobias: no b.
        initialW: initializer of W (out_size, in_size); None is LeCunNormal.
        initial_bias: initializer of b (out_size,); None is 0.

    W and b are of the dtype ``mnpar.configuration.dtype`` unless their initializers say otherwise.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> layer = L.Linear(None, 2)
        >>> layer(np.ones((5, 3), "f4")).shape, layer.W.shape
        ((5, 2), (2, 3))
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: Any = None,
        initial_bias: Any = None,
    ) -> None:
        super().__init__()
        if out_size is None:
            in_size, out_size = None, in_size
        if out_size is None or out_size < 1 or (in_size is not None and in_size < 1):
            raise ValueError(f"Linear({in_size}, {out_size}): sizes are 1 or more")
        self.in_size, self.out_size = in_size, out_size
        self.W = Parameter(initializers._get_initializer(initialW))
        self.b: Parameter | None = None
        if not nobias:
            self.b = Parameter(initializers._get_initializer(initial_bias, 0), out_size)
        if in_size is not None:
            self._initialize_params(in_size)

    def _initialize_params(self, in_size: int) -> None:
        self.in_size = in_size
        self.W.initialize((self.out_size, in_size))

    def _take_size(self, x: Any, n_batch_axes: int) -> None:
        in_size = int(np.prod(x.shape[n_batch_axes:]))
        if not 0 < n_batch_axes < x.ndim or in_size < 1:
            raise ValueError(no_features(f"Linear(None, {self.out_size})", x.shape, n_batch_axes))
        self._initialize_params(in_size)

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("in_size", self.in_size),
            ("out_size", self.out_size),
            ("nobias", self.b is None),
        )

    def forward(self, x: Any, n_batch_axes: int = 1) -> Variable:
        """The layer's outputs.

        Args:
            x: (N, …), with the axes after ``n_batch_axes`` flattened to D.
            n_batch_axes: how many axes count examples.

        Returns:
            (N, out_size), with all of the ``n_batch_axes`` first axes of x.

        Raises:
            ValueError: x has other features than ``in_size``, or none.
        """
        if self.W.array is None:
            self._take_size(x, n_batch_axes)
        return linear(x, self.W, self.b, n_batch_axes=n_batch_axes)
