"""Parameter: a Variable that a Link learns; its shape may become known only when data arrive."""

from __future__ import annotations

from typing import Any

import numpy as np

from mnpar import backend
from mnpar.config import config
from mnpar.variable import Variable


class Parameter(Variable):
    """A Variable that a Link learns; its shape may become known only when data arrive.

    Args:
        initializer: an array, a number, a function ``(array) -> None`` that fills one, or None (NaN, to be overwritten).
        shape: None leaves it uninitialized until :meth:`initialize` is called.
        name: its name in the link.

    Example:
        >>> import mnpar
        >>> W = mnpar.Parameter(0.5)
        >>> W.is_initialized
        False
        >>> W.initialize((2,))
        >>> W.array
        array([0.5, 0.5], dtype=float32)
    """

    __slots__ = ("__dict__",)

    def __init__(self, initializer: Any = None, shape: Any = None, name: str | None = None) -> None:
        super().__init__(initializer if backend.is_array(initializer) and shape is None else None, name=name)
        self.initializer = initializer
        self.update_rule: Any = None
        if shape is not None:
            self.initialize((shape,) if isinstance(shape, int) else tuple(shape))

    def __copy__(self) -> Parameter:
        """Another Parameter of the same array and gradient."""
        other = Parameter(self.initializer, name=self.name)
        other.update_rule = self.update_rule
        if self.array is not None:
            other.array = self.array
            other.node.shape, other.node.dtype = self.array.shape, self.array.dtype
            other.node.gradient = self.node.gradient
        return other

    @property
    def is_initialized(self) -> bool:
        """Whether it has an array already."""
        return self.array is not None

    def initialize(self, shape: tuple[int, ...]) -> None:
        """Make and fill the array.

        Args:
            shape: of the array.
        """
        filler = self.initializer
        array = np.full(shape, np.nan, getattr(filler, "dtype", None) or config.dtype)
        if callable(filler):
            filler(array)
        elif filler is not None:
            array[...] = filler
        self.array = array
        self.node.shape, self.node.dtype = array.shape, array.dtype

    def update(self) -> None:
        """Let the optimizer's rule change the array by the gradient."""
        if self.update_rule is not None:
            self.update_rule.update(self)
