"""The protocol by which links and optimizers are saved and loaded: one call, ``value =
serializer(key, value)``, does both.

A serializer writes the value down and returns it; a deserializer returns what was written under
that key, into the given array where there is one. ``serializer[key]`` is the serializer of the part
of that name. So an object's ``serialize`` method names its parts once, for saving and loading.
"""

from __future__ import annotations

from typing import Any, Protocol


class Serializable(Protocol):
    """An object that can be saved and loaded: a link, an optimizer, an iterator, a Trainer."""

    def serialize(self, serializer: AbstractSerializer) -> object:
        """Save or load the object's values."""


class AbstractSerializer:
    """The base of Serializer and Deserializer.

    Example:
        >>> import mnpar
        >>> class Keys(mnpar.serializer.Serializer):
        ...     def __getitem__(self, key):
        ...         return self
        ...
        ...     def __call__(self, key, value):
        ...         print(key, value.shape)
        ...         return value
        >>> mnpar.links.Linear(3, 2).serialize(Keys())
        W (2, 3)
        b (2,)
    """

    # True if it stores ranks' parts of one array as parts: see placed
    knows_places = False
    # True if its files are Chainer's, where the links of a Sequential have other numbers: see
    # chain.py
    of_chainer = False

    def __getitem__(self, key: str) -> AbstractSerializer:
        """Return the serializer of the part named ``key``."""
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__(self, key)")

    def __call__(self, key: str, value: Any) -> Any:
        """Write ``value`` under ``key``, or read it: returns the value that the object is to have
        from now on.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define __call__(self, key, value)"
        )

    def place(
        self, whole: tuple[int, ...] | None, box: Any, statistic: bool = False
    ) -> AbstractSerializer:
        """Return the serializer for one parameter and its optimizer states, which are this rank's
        part of arrays of all ranks.

        Files of one rank's arrays need no places; a checkpoint of all ranks stores each array
        whole.

        Args:
            whole: the shape of the whole array of which this rank has a box; None: it has the
                whole.
            box: the :class:`mnpar.plans.Box` that it has; arrays of another shape than the box's
                lie nowhere.
            statistic: each rank has its own estimate of one thing, such as a running mean.
        """
        return self


def placed(serializer: AbstractSerializer, parameter: Any) -> AbstractSerializer:
    """Return the serializer for a parameter's array, and for what an optimizer keeps for it."""
    place = getattr(serializer, "place", None)
    return serializer if place is None else place(parameter.whole, parameter.box)


def persistent(serializer: AbstractSerializer) -> AbstractSerializer:
    """Return the serializer for a link's persistent values."""
    place = getattr(serializer, "place", None)
    return serializer if place is None else place(None, None, statistic=True)


def optional_part(serializer: AbstractSerializer, name: str) -> AbstractSerializer | None:
    """Return the serializer of a part, for a value that may be left out; None if the serializer has
    no parts, because it only knows ``serializer(key, value)``.
    """
    try:
        return serializer[name] if hasattr(serializer, "__getitem__") else None
    except NotImplementedError:
        return None


class Serializer(AbstractSerializer):
    """Writes objects down.

    Example:
        >>> import mnpar
        >>> class Count(mnpar.Serializer):
        ...     keys = 0
        ...
        ...     def __getitem__(self, key):
        ...         return self
        ...
        ...     def __call__(self, key, value):
        ...         self.keys += 1
        ...         return value
        >>> count = Count()
        >>> count.save(mnpar.links.Linear(3, 2))
        >>> count.keys
        2
    """

    def save(self, obj: Serializable) -> None:
        """Write an object that has a ``serialize`` method."""
        obj.serialize(self)


class Deserializer(AbstractSerializer):
    """Reads objects back.

    Example:
        >>> import mnpar
        >>> class Ones(mnpar.Deserializer):
        ...     def __getitem__(self, key):
        ...         return self
        ...
        ...     def __call__(self, key, value):
        ...         value[...] = 1
        ...         return value
        >>> layer = mnpar.links.Linear(1, 1)
        >>> Ones().load(layer)
        >>> layer.W.array
        array([[1.]], dtype=float32)
    """

    def load(self, obj: Serializable) -> None:
        """Read an object that has a ``serialize`` method."""
        obj.serialize(self)
