"""Sequential: layers that are called one after another, and ``Link.repeat``, which makes one of
copies of a link.

Its methods are those of a ChainList; their arguments have other names, as in Chainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mnpar.chain import ChainList, Layer, layer_type, one_by_one
from mnpar.errors import refuse_class
from mnpar.link import Link
from mnpar.serializer import AbstractSerializer


class Sequential(ChainList):
    """Links and functions, each called with what the one before returned (a tuple as several
    arguments).

    Args:
        layers: links and other callables.

    Example:
        >>> import numpy as np, mnpar, mnpar.functions as F, mnpar.links as L
        >>> model = mnpar.Sequential(L.Linear(4, 3), F.relu, L.Linear(3, 2))
        >>> model(np.ones((5, 4), "f4")).shape
        (5, 2)
    """

    def _checked(self, layer: Layer) -> Layer:
        if not callable(layer):
            raise TypeError(
                f"the layers of a Sequential are called: {type(layer).__name__} cannot "
                f"be{one_by_one(layer)}"
            )
        if isinstance(layer, type) and issubclass(layer, Link):
            refuse_class(layer, "a Sequential is made of links")
        return super()._checked(layer) if isinstance(layer, Link) else layer

    def insert(self, i: int, layer: Layer) -> None:
        """Insert a layer before a place.

        Raises:
            TypeError: it cannot be called.
        """
        super().insert(i, layer)

    def append(self, layer: Layer) -> None:
        """Add a layer at the end."""
        super().append(layer)

    def extend(self, sequential: Iterable[Layer]) -> None:
        """Add the layers of another Sequential, or of a list, at the end; none of them if one
        cannot be called.
        """
        super().extend(sequential)

    def pop(self, i: int = -1) -> Any:
        """Remove the layer at a place; returns it."""
        return super().pop(i)

    def remove(self, layer: Layer) -> None:
        """Remove the first occurrence of a layer."""
        super().remove(layer)

    def index(self, layer: Layer, start: int | None = None, end: int | None = None) -> int:
        """Return the first place of a layer, from ``start`` on and before ``end``."""
        return super().index(layer, start or 0, end)

    def count(self, layer: Layer) -> int:
        """Return how often a layer is in the list."""
        return super().count(layer)

    def _filed(self, serializer: AbstractSerializer) -> Iterator[tuple[str, Link]]:
        """Chainer puts a new link not behind the last one, but behind the first: in its files 0 1 2
        3 are 0 3 2 1.
        """
        if not getattr(serializer, "of_chainer", False):
            return super()._filed(serializer)
        links = self._child_links()
        first = [isinstance(layer, Link) for layer in [*self._list, self]].index(True)
        return ((str(i), link) for i, link in enumerate(links[: first + 1] + links[:first:-1]))

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other) if isinstance(other, Sequential) else NotImplemented

    def forward(self, *xs: Any) -> Any:
        """Return the layers, one after another."""
        y: Any = xs
        for layer in self._list:
            y = layer(*y) if isinstance(y, tuple) else layer(y)
        return y[0] if isinstance(y, tuple) and len(y) == 1 else y

    def flatten(self) -> Sequential:
        """Return the same with Sequentials inside replaced by their layers."""
        flat = [
            x
            for layer in self._list
            for x in (layer.flatten() if isinstance(layer, Sequential) else [layer])
        ]
        return Sequential(*flat)

    def count_by_layer_type(self, type_name: str) -> int:
        """Return how many layers are of the class or function of this name."""
        return sum(layer_type(layer) == type_name for layer in self._list)

    def remove_by_layer_type(self, type_name: str) -> None:
        """Take out the layers of the class or function of this name."""
        self._list[:] = [layer for layer in self._list if layer_type(layer) != type_name]
        self._changed()
