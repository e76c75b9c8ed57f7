"""Layer and group normalization with their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mnpar import initializers
from mnpar.functions.normalization.layer_normalization import (
    group_normalization,
    layer_normalization,
)
from mnpar.link import Link
from mnpar.parameter import Parameter
from mnpar.variable import Variable


class _Normalization(Link):
    """The base of both layers: gamma and beta, initially 1 and 0, whose size may come from the
    first batch.
    """

    def __init__(
        self, size: int | tuple[int, ...] | None, eps: float, initial_gamma: Any, initial_beta: Any
    ) -> None:
        super().__init__()
        self.eps = eps
        self.gamma = Parameter(initializers._get_initializer(initial_gamma, 1))
        self.beta = Parameter(initializers._get_initializer(initial_beta, 0))
        if size is not None:
            self._initialize_params((size,) if isinstance(size, int | np.integer) else tuple(size))

    def _initialize_params(self, size: tuple[int, ...]) -> None:
        if any(n < 1 for n in size):
            raise ValueError(f"{type(self).__name__}: the sizes {size} are not 1 or more")
        for param in (self.gamma, self.beta):
            if not param.is_initialized:
                param.initialize(size)

    def _take_size(self, x: Any, axis: int) -> None:
        if not (self.gamma.is_initialized and self.beta.is_initialized):
            if x.ndim < 2:
                raise ValueError(f"{type(self).__name__}: x {x.shape} has no batch and channels")
            self._initialize_params((x.shape[axis],))


class LayerNormalization(_Normalization):
    """Normalizes the features of each sample to mean 0 and deviation 1, then γ·x + β:
    ``F.layer_normalization``.

    Args:
        size: of gamma and beta: the features D, or a tuple of the last axes of x; None takes D from
            the first batch.
        eps: added to the variance.
        initial_gamma, initial_beta: initializers, numbers or arrays; None is 1 and 0.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.LayerNormalization()(np.array([[1.0, 3.0]])).array.round(3)
        array([[-1.,  1.]])
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        eps: float = 1e-6,
        initial_gamma: Any = None,
        initial_beta: Any = None,
    ) -> None:
        super().__init__(size, eps, initial_gamma, initial_beta)

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """Names and values to show in ``repr``."""
        yield from (
            ("size", self.gamma.shape if self.gamma.is_initialized else None),
            ("eps", self.eps),
        )

    def forward(self, x: Any) -> Variable:
        """The normalized samples.

        Args:
            x: (N, D), or more axes.

        Returns:
            x's shape and dtype.
        """
        self._take_size(x, -1)
        return layer_normalization(x, self.gamma, self.beta, self.eps)


class GroupNormalization(_Normalization):
    """Normalizes each group of channels of each sample to mean 0 and deviation 1, then γ·x + β:
    ``F.group_normalization``.

    Args:
        groups: how many groups the channels are cut into.
        size: the number of channels C; None takes it from the first batch.
        eps: added to the variance.
        initial_gamma, initial_beta: initializers, numbers or arrays; None is 1 and 0.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> import numpy as np, mnpar.links as L
        >>> L.GroupNormalization(2)(np.array([[1.0, 3.0, 5.0, 15.0]])).array.round(3)
        array([[-1.,  1., -1.,  1.]])
    """

    def __init__(
        self,
        groups: int,
        size: int | None = None,
        eps: float = 1e-5,
        initial_gamma: Any = None,
        initial_beta: Any = None,
    ) -> None:
        super().__init__(size, eps, initial_gamma, initial_beta)
        self.groups = groups

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        """Names and values to show in ``repr``."""
        size = self.gamma.size if self.gamma.is_initialized else None
        yield from (("groups", self.groups), ("size", size), ("eps", self.eps))

    def forward(self, x: Any) -> Variable:
        """The normalized samples.

        Args:
            x: (N, C, …).

        Returns:
            x's shape and dtype.
        """
        self._take_size(x, 1)
        return group_normalization(x, self.groups, self.gamma, self.beta, self.eps)
