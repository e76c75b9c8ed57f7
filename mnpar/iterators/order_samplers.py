"""Order samplers: in which order the examples of the next epoch come, and how that is saved and
restored.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np

from mnpar.backend import Array
from mnpar.random import spawn
from mnpar.serializer import AbstractSerializer, Deserializer, Serializer

# bytes for a generator's state as text: numpy's largest, the Mersenne twister's, takes 8 KB
ROOM = 1 << 14


class OrderSampler(Protocol):
    """A function of the current order and the position in it that returns the order of the next
    epoch.

    The first order, asked for with 0, 1, … N - 1, may have more or fewer examples, and some more
    than once: that many make an epoch from then on.
    """

    def __call__(self, current_order: Array, current_position: int, /) -> Array: ...


class ShuffleOrderSampler:
    """Draws a new random order for every epoch.

    It has a generator of its own, so the orders do not depend on other random numbers (dropout,
    threads that prefetch).

    Args:
        random_state: a numpy RandomState or Generator, or a seed; ``RandomState(seed)`` gives the
            orders that Chainer draws from it. None: a generator spawned from the rank's
            (:func:`mnpar.random.spawn`).

    Example:
        >>> import numpy as np
        >>> from mnpar.iterators import ShuffleOrderSampler
        >>> ShuffleOrderSampler(np.random.RandomState(0))(np.arange(5), 0)
        array([2, 0, 1, 3, 4])
    """

    def __init__(
        self, random_state: np.random.RandomState | np.random.Generator | int | None = None
    ) -> None:
        if random_state is None:
            [random_state] = spawn(1)
        elif isinstance(random_state, int | np.integer):
            random_state = np.random.default_rng(random_state)
        self._random = random_state

    def __call__(self, current_order: Array, current_position: int) -> Array:
        return self._random.permutation(len(current_order))

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Keep the generator's state, so that a resumed run draws the orders that this one would
        have drawn.
        """
        state = serializer("state", _as_bytes(_state(self._random)))
        try:
            loaded = json.loads(bytes(np.asarray(state, np.uint8)))
            if isinstance(self._random, np.random.RandomState):
                self._random.set_state(loaded)
            else:
                self._random.bit_generator.state = loaded
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                "the saved order sampler does not fit this one, a "
                f"{type(self._random).__name__}: {error}; "
                "make the iterator with the same random_state as in the run that was saved"
            ) from None


def _state(random: np.random.RandomState | np.random.Generator) -> Any:
    return (
        random.get_state(legacy=False)
        if isinstance(random, np.random.RandomState)
        else random.bit_generator.state
    )


def _as_bytes(state: Any) -> Array:
    """uint8, always of one length: a serializer reads into it what it wrote from it."""
    text = json.dumps(state, default=lambda numbers: numbers.tolist()).encode()
    return np.frombuffer(text.ljust(ROOM), np.uint8).copy()


class SamplerState(Serializer):
    """The state of an order sampler: a serializer that keeps what the sampler writes, so that it
    can be restored.
    """

    def __init__(self, sampler: Any, values: dict[str, Any], path: str = "") -> None:
        self.sampler = sampler
        self.values = values
        self.path = path

    @classmethod
    def of(cls, sampler: Any) -> SamplerState | None:
        """Return a sampler's state; None if it has no ``serialize``."""
        if not hasattr(sampler, "serialize"):
            return None
        state = cls(sampler, {})
        state.save(sampler)
        return state

    def restore(self) -> None:
        """Put the sampler back into this state."""
        _Reading(self.values).load(self.sampler)

    def __getitem__(self, key: str) -> SamplerState:
        return SamplerState(self.sampler, self.values, f"{self.path}{key}/")

    def __call__(self, key: str, value: Any) -> Any:
        # arrays as bytes: states are compared
        kept = (
            (value.tobytes(), value.dtype, value.shape) if isinstance(value, np.ndarray) else value
        )
        self.values[self.path + key] = kept
        return value


class _Reading(Deserializer):
    """Reads what a :class:`SamplerState` holds."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self.values = values
        self.path = path

    def __getitem__(self, key: str) -> _Reading:
        return _Reading(self.values, f"{self.path}{key}/")

    def __call__(self, key: str, value: Any) -> Any:
        kept = self.values[self.path + key]
        return (
            np.frombuffer(kept[0], kept[1]).reshape(kept[2]).copy()
            if isinstance(kept, tuple)
            else kept
        )
